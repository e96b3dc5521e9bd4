#!/usr/bin/env bash
# image.sh OUT.gz [PROGRAM]...: makes an initramfs with busybox, the clients' programs, the kernel
# modules that they need, the given programs, and their libraries. Takes three seconds.
# FOREBAY_GUEST_MODULES replaces the list of modules.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"
# shellcheck source=tests/guest/kernel.sh
. "$(dirname "$0")/kernel.sh"
out=$1
shift
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

mkdir -p "$root"/{bin,dev,etc,lib,lib64,mnt,proc,run,sys,tmp,empty}
cp "$(command -v busybox)" "$root/bin/busybox"
for applet in $("$root/bin/busybox" --list); do
    [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
done

# The modules with their dependencies, by modprobe's own answer.
modules=${FOREBAY_GUEST_MODULES:-virtio_pci virtio_blk virtio_net crc32c_generic nbd nvme-tcp dm-mod
    dm-log-writes ext4 xfs nfit nd_pmem nd_btt}
for module in $modules; do
    modprobe -C "$root/empty" -d "$guest_root/" -S "$kernel" --show-depends "$module" |
        awk '$1 == "insmod" {print $2}'
done | sort -u | while read -r file; do
    install -D -m 644 "$file" "$root/${file#"$guest_root"}"
done
for file in modules.builtin modules.builtin.bin modules.builtin.modinfo modules.order; do
    install -D -m 644 "$guest_root/lib/modules/$kernel/$file" "$root/lib/modules/$kernel/$file"
done
depmod -b "$root" "$kernel"

programs=(bash dd kmod fio nbd-client dmsetup mkfs.ext4 e2fsck mkfs.xfs xfs_repair blkdiscard
    blockdev)
for program in "${programs[@]}" "$@"; do
    file=$(readlink -f "$(command -v "$program")") || {
        echo "guest: $program is missing: run tests/guest/setup.sh" >&2
        exit 1
    }
    rm -f "$root/bin/${program##*/}"
    cp "$file" "$root/bin/${program##*/}"
    { ldd "$file" 2>/dev/null || true; } | grep -oE '/[^ ]+' | sort -u | while read -r library; do
        [ -e "$root/$library" ] || install -D -m 755 "$library" "$root/$library"
    done
done
ln -sf kmod "$root/bin/modprobe"
# Programs load these by name at run time.
for library in /lib/x86_64-linux-gnu/libgcc_s.so.1 /usr/lib/x86_64-linux-gnu/fio/*.so; do
    [ ! -e "$library" ] || install -D -m 755 "$library" "$root/$library"
done
cp /etc/mke2fs.conf "$root/etc/"
ln -s /proc/mounts "$root/etc/mtab"
echo 'root:x:0:0::/:/bin/sh' >"$root/etc/passwd"
echo 'hosts: files' >"$root/etc/nsswitch.conf"
rmdir "$root/empty"
install -m 755 "$(dirname "$0")/init" "$root/init"

(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$out"
