#!/usr/bin/env bash
# The kernel's NBD client (in the guest) against `forebay serve` (on this machine):
#
# 1. 256 O_DSYNC writes of 4 KiB at queue depth 1 are covered by at least 256 flushes of the medium,
#    by the medium's own count. The medium is the cache device in write-back, and the backing device
#    in write-through. The same writes without O_DSYNC are not covered, which shows that the check
#    can fail.
# 2. ext4 and XFS, fsck, fio's verify, discard, four connections.
#
# Prints a line for each check and, with FOREBAY_ROWS set, also a line `ROW {json}`. Exit code 0 if
# all hold. FOREBAY_BIN is the program (built if not set).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH="$PATH:/usr/sbin:/sbin"
"$here/setup.sh"
program=${FOREBAY_BIN:-}
if [ -z "$program" ]; then
    manifest="$here/../../Cargo.toml"
    cargo build --quiet --release --locked --package forebay --manifest-path "$manifest"
    target=$(cargo metadata --format-version 1 --no-deps --manifest-path "$manifest" |
        jq -r .target_directory)
    program=$target/release/forebay
fi

writes=256
work=$(mktemp -d)
daemons=() loops=()
# shellcheck disable=SC2317 # the trap calls it
finish() {
    for daemon in "${daemons[@]}"; do kill -9 "$daemon" 2>/dev/null || true; done
    wait 2>/dev/null || true
    for loop in "${loops[@]}"; do losetup --detach "$loop" || true; done
    rm -rf "$work"
}
trap finish EXIT

media=own
if [ "$(id -u)" -eq 0 ] && [ -e /dev/loop-control ]; then
    media=loop
else
    echo "guest nbd: no loop devices for this user: flushes are counted by forebay alone," \
        "not by the medium"
fi
# medium NAME SIZE: makes a file and prints the device to use for it.
medium() {
    truncate -s "$2" "$1"
    if [ "$media" = loop ]; then
        losetup --find --show --direct-io=on "$1"
    else
        echo "$1"
    fi
}

# Cases: name | mode | durability | the device whose flushes count
cases=("wb-flush|wb|flush|cache" "wt-flush|wt|flush|backing" "wb-sync|wb|sync|cache"
    "wt-sync|wt|sync|backing")
declare -A port device
guest="$work/script"
serve() { # NAME MODE DURABILITY
    local folder="$work/$1" cache backing
    mkdir "$folder"
    cache=$(medium "$folder/cache" 96M)
    backing=$(medium "$folder/backing" 512M)
    [ "$media" = own ] || loops+=("$cache" "$backing")
    device[$1/cache]=$cache device[$1/backing]=$backing
    # No commits by the timer while the writes are counted.
    cat >"$folder/forebay.toml" <<TOML
[[device]]
name = "cache"
kind = "file"
path = "$cache"
[[device]]
name = "backing"
kind = "file"
path = "$backing"
[cache]
data = "cache"
durability = "$3"
journal = "journal"
commit_interval = "60s"
[[volume]]
name = "v"
backing = "backing"
mode = "$2"
[[export]]
volume = "v"
nbd = "127.0.0.1:0"
[server]
control = "control.sock"
metrics = "127.0.0.1:0"
state = "state"
TOML
    "$program" format --cache "$cache" --force >"$folder/log"
    (cd "$folder" && exec "$program" serve forebay.toml) >>"$folder/log" 2>&1 </dev/null &
    daemons+=($!)
    for _ in $(seq 200); do
        port[$1]=$(status "$1" 2>/dev/null | jq -r '.listening[]' 2>/dev/null |
            sed -n 's/.*127\.0\.0\.1:\([0-9]*\)\/v.*/\1/p' | head -n 1 || true)
        [ -z "${port[$1]}" ] || return 0
        sleep 0.05
    done
    cat "$folder/log" >&2
    echo "guest nbd: forebay does not serve" >&2
    return 1
}
status() { "$program" status --json --control "$work/$1/control.sock"; }
# Flushes so far: by forebay's own count of flushes and FUA writes, and by the medium's count.
flushes() { # NAME ROLE
    local own medium=0
    own=$(status "$1" | jq "[.devices[] | select(.role == \"$2\") | .flushes + .fua_writes] | add")
    # shellcheck disable=SC2034 # the fields that come before
    [ "$media" = own ] || medium=$(awk '{print $16}' "/sys/block/${device[$1/$2]#/dev/}/stat")
    echo "$own $medium"
}
# Whether each of the writes at queue depth 1 can have had its own flush before its acknowledgement.
covered() { # WRITES FLUSHES
    [ "$2" -ge "$1" ]
}
! covered 256 255 && covered 256 256 || exit 1

# shellcheck disable=SC2016 # for the shell in the guest
echo 'set -e
modprobe nbd nbds_max=16
write() { # DEVICE FLAGS NAME
    sleep 1
    echo "SNAP $3 before"
    sleep 1
    dd if=/dev/urandom of=$1 bs=4k count='$writes' oflag=$2 conv=notrunc status=none
    echo "SNAP $3 after"
    sleep 1
}' >"$guest"
number=0
for one in "${cases[@]}"; do
    IFS='|' read -r name mode durability role <<<"$one"
    serve "$name" "$mode" "$durability"
    cat >>"$guest" <<G
nbd-client 10.0.2.2 ${port[$name]} /dev/nbd$number -N v >/dev/null
queue=/sys/block/nbd$number/queue
echo "INFO $name write_cache=\$(cat \$queue/write_cache), fua=\$(cat \$queue/fua)"
write /dev/nbd$number direct,dsync $name-dsync
write /dev/nbd$number direct $name-plain
nbd-client -d /dev/nbd$number >/dev/null
G
    number=$((number + 1))
done
serve files wb flush
cat >>"$guest" <<G
modprobe ext4
modprobe xfs
nbd-client 10.0.2.2 ${port[files]} /dev/nbd$number -N v >/dev/null
mkfs.ext4 -q -F /dev/nbd$number
mount /dev/nbd$number /mnt
dd if=/dev/urandom of=/mnt/a bs=1M count=20 2>/dev/null
sync
sum=\$(md5sum </mnt/a)
umount /mnt
e2fsck -fn /dev/nbd$number >/tmp/fsck 2>&1 || { cat /tmp/fsck; exit 1; }
mount /dev/nbd$number /mnt
echo 3 >/proc/sys/vm/drop_caches
[ "\$(md5sum </mnt/a)" = "\$sum" ]
umount /mnt
echo "DONE ext4"
fio --name=v --filename=/dev/nbd$number --direct=1 --ioengine=libaio --iodepth=16 --rw=randrw \
    --bs=4k --size=64M --io_size=8M --verify=crc32c --verify_fatal=1 >/tmp/fio ||
    { cat /tmp/fio; exit 1; }
echo "DONE fio verify"
blkdiscard -f /dev/nbd$number
[ "\$(dd if=/dev/nbd$number bs=1M count=64 2>/dev/null | tr -d '\\0' | wc -c)" = 0 ]
echo "DONE discard"
nbd-client -d /dev/nbd$number >/dev/null
nbd-client 10.0.2.2 ${port[files]} /dev/nbd$number -N v -C 4 >/dev/null
mkfs.xfs -q -f /dev/nbd$number
mount /dev/nbd$number /mnt
dd if=/dev/urandom of=/mnt/a bs=1M count=20 2>/dev/null
sync
sum=\$(md5sum </mnt/a)
umount /mnt
xfs_repair -n /dev/nbd$number >/dev/null 2>&1
mount /dev/nbd$number /mnt
echo 3 >/proc/sys/vm/drop_caches
[ "\$(md5sum </mnt/a)" = "\$sum" ]
umount /mnt
nbd-client -d /dev/nbd$number >/dev/null
echo "DONE xfs on four connections"
G

"$here/image.sh" "$work/image"
declare -A before
failed=0
row() { [ -z "${FOREBAY_ROWS:-}" ] || echo "ROW $1"; }
while read -r word name rest; do
    case $word in
    INFO) echo "$name: the kernel sees ${rest}" ;;
    SNAP)
        for one in "${cases[@]}"; do
            IFS='|' read -r case mode durability role <<<"$one"
            [ "${name%-*}" = "$case" ] || continue
            read -r own medium < <(flushes "$case" "$role")
            if [ "$rest" = before ]; then
                before[$name]="$own $medium"
                continue
            fi
            read -r own0 medium0 <<<"${before[$name]}"
            own=$((own - own0)) medium=$((medium - medium0))
            counted=$([ "$media" = loop ] && echo "$medium" || echo "$own")
            kind=${name##*-}
            # Without a volatile cache every acknowledgement is durable, with O_DSYNC or without.
            wanted=$([ "$kind" = dsync ] || [ "$durability" = sync ] && echo true || echo false)
            found=$(covered "$writes" "$counted" && echo true || echo false)
            holds=$([ "$wanted" = "$found" ] && echo true || echo false)
            [ "$holds" = true ] || failed=1
            echo "$case, $writes $kind writes: the $role device saw $medium flushes;" \
                "forebay counts $own flushes and FUA writes;" \
                "each write covered: $found, as it must: $holds"
            fields="\"check\":\"$name\",\"mode\":\"$mode\",\"durability\":\"$durability\""
            fields+=",\"writes\":$writes,\"device\":\"$role\",\"medium\":\"$media\""
            fields+=",\"medium_flushes\":$medium,\"own_flushes_and_fua\":$own"
            fields+=",\"covered\":$found,\"must_be_covered\":$wanted,\"holds\":$holds"
            row "{$fields}"
        done
        ;;
    DONE)
        echo "kernel client: $name${rest:+ $rest}: holds"
        row "{\"check\":\"$name${rest:+ $rest}\",\"holds\":true}"
        done_checks=$((${done_checks:-0} + 1))
        ;;
    *) echo "guest: $word $name $rest" ;;
    esac
done < <("$here/boot.sh" -i "$work/image" -t 300 "$guest" || echo "the script failed with code $?")
if [ "${done_checks:-0}" -ne 4 ] || [ ${#before[@]} -ne 8 ]; then
    echo "guest nbd: not every check was reached; the daemons said:"
    tail -n 5 "$work"/*/log
    failed=1
fi
echo "guest nbd: $([ $failed = 0 ] && echo "all hold" || echo "FAILED"), ${SECONDS} s"
exit $failed
