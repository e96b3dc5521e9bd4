# Sourced by demo.sh: a real directory tree on the volume 'files'. As root, where FUSE and loop devices
# exist, on ext4 on a loop device; else as a tar stream over NBD.
# shellcheck shell=bash disable=SC2154,SC2034

tree_source=/usr/share
tree_limit_bytes=$((150 * 1000 * 1000))
loop=""
block_device=""

# Chooses what to copy: readable files in the order of their names until the limit is reached.
tree_choose() {
    local reason=""
    if [ "$(id -u)" -ne 0 ]; then
        reason="only root may attach loop devices and mount"
    elif [ ! -e /dev/loop-control ]; then
        reason="/dev/loop-control does not exist here"
    elif [ -z "$fuse" ]; then
        reason="there is no FUSE export"
    elif ! command -v mkfs.ext4 >/dev/null || ! command -v losetup >/dev/null; then
        reason="mkfs.ext4 or losetup is missing"
    else
        block_device=yes
    fi
    if [ -z "$block_device" ]; then
        note "SKIPPED: the local block device with ext4, its kill -9 and fsck: $reason."
        note "Instead the tree goes over NBD as a tar stream."
    fi

    # find complains about folders that this user may not read, and goes on.
    { find "$tree_source" -xdev -type f -readable -size -8M -printf '%s %P\n' 2>/dev/null || true; } | LC_ALL=C sort -k 2 |
        awk -v limit="$tree_limit_bytes" '{ size = $1; sub(/^[0-9]+ /, ""); if (total + size <= limit) { total += size; print } }' \
            >"$dir/tree.list"
    tree_files=$(wc -l <"$dir/tree.list")
    (cd "$tree_source" && tr '\n' '\0' <"$dir/tree.list" | xargs -0 sha256sum) >"$dir/tree.sha256"
}

tree_copy_in() {
    local megabytes=$((tree_limit_bytes / 1000000))
    if [ -z "$block_device" ]; then
        step "copying $tree_files files of $tree_source (up to $megabytes MB) as a tar stream over NBD"
        tar -C "$tree_source" -cf "$dir/tree.tar" -T "$dir/tree.list"
        nbdcopy --flush "$dir/tree.tar" "$(uri cached files)"
        tree_bytes=$(stat -c %s "$dir/tree.tar")
        rm "$dir/tree.tar"
        return
    fi
    tree_attach
    step "making ext4 on $loop"
    mkfs.ext4 -q -E nodiscard "$loop"
    mount "$loop" "$dir/ext4"
    step "copying $tree_files files of $tree_source (up to $megabytes MB)"
    mkdir "$dir/ext4/tree" "$dir/ext4/synced"
    tar -C "$tree_source" -cf - -T "$dir/tree.list" | tar -C "$dir/ext4/tree" -xf -
    sync -f "$dir/ext4"
}

tree_attach() {
    # NBD may answer a moment before the mount is there.
    for _ in $(seq 200); do
        [ ! -e "$dir/mnt/files" ] || break
        sleep 0.05
    done
    loop=$(losetup --find --show --direct-io=on "$dir/mnt/files")
}

# Checks every file against its checksum, read anew from the volume.
tree_verify() {
    if [ -z "$block_device" ]; then
        rm -rf "$dir/back" && mkdir "$dir/back"
        nbdcopy "$(uri cached files)" - 2>/dev/null | head -c "$tree_bytes" | tar -C "$dir/back" -xf -
        (cd "$dir/back" && sha256sum --quiet -c "$dir/tree.sha256")
        return
    fi
    # Unmounting drops what the kernel cached of the file system.
    umount "$dir/ext4" && mount "$loop" "$dir/ext4" &&
        (cd "$dir/ext4/tree" && sha256sum --quiet -c "$dir/tree.sha256") &&
        if [ -s "$dir/synced.sha256" ]; then
            (cd "$dir/ext4/synced" && sha256sum --quiet -c "$dir/synced.sha256")
        fi
}

# Writes files and syncs each; only what was synced goes into the list.
tree_load_start() {
    : >"$dir/synced.sha256"
    [ -n "$block_device" ] || return 0
    (
        set +e
        cd "$dir/ext4/synced" || exit
        for number in $(seq 100000); do
            head -c $((4096 + RANDOM * 8)) /dev/urandom >"$dir/next"
            dd if="$dir/next" of="file-$number" bs=64K conv=fsync status=none || exit
            sync "." || exit
            (cd "$dir" && sha256sum next) | sed "s/next/file-$number/" >>"$dir/synced.sha256"
        done
    ) >/dev/null 2>&1 &
    load_pids+=($!)
}

# The daemon died and took the disk away, as a power cut does: what hung on it is taken down.
tree_lost() {
    [ -n "$block_device" ] || return 0
    umount "$dir/ext4" 2>/dev/null || umount -l "$dir/ext4"
    losetup --detach "$loop"
    loop=""
    fuse_gone
}

# The journal of ext4 is replayed by mounting, as after a power cut; then fsck -n must find nothing.
tree_recover() {
    [ -n "$block_device" ] || return 0
    note "synced before the kill: $(wc -l <"$dir/synced.sha256") files"
    tree_attach
    mount "$loop" "$dir/ext4"
    umount "$dir/ext4"
    check "e2fsck -fn is clean (after the journal was replayed)" e2fsck -fn "$loop"
    mount "$loop" "$dir/ext4"
}

# Takes everything down that tree_attach set up; safe at any time.
tree_detach() {
    if mountpoint -q "$dir/ext4" 2>/dev/null; then
        umount "$dir/ext4" 2>/dev/null || umount -l "$dir/ext4"
    fi
    if [ -n "$loop" ]; then
        losetup --detach "$loop" || true
        loop=""
    fi
}
