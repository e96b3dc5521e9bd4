#!/usr/bin/env bash
# The kernel's ublk driver and `forebay serve`, both in the guest. The kernel is that of Debian's
# backports, since the release's own has no such driver. The media are virtio disks, which count
# flushes.
#
# 1. Without the driver the daemon names it in its error. With it, the block device has the volume's
#    properties: size, blocks, volatile cache, FUA, a queue for each reactor.
# 2. 256 O_DSYNC writes of 4 KiB at queue depth 1 (FUA) are covered by at least 256 flushes of the
#    cache device, by the kernel's count. So are 256 writes with an fsync after each (FLUSH). The
#    same writes without either are not covered, which shows that the check can fail.
# 3. ext4, XFS, fsck, fio's verify, discard, write-zeroes (`--quick`: less of fio, and no XFS).
# 4. The daemon is killed under fio on the device and under writes to ext4, and restarted, several
#    times. Both continue, nothing fails, and all data is there. A number in use is refused.
# 5. The daemon is stopped under a mounted file system and restarted, and the file system continues.
#    A volume with a mounted file system is not detached. After the unmount, the end of the daemon
#    removes the device.
# 6. A daemon without the cache does not take over a waiting device. `remove-ublk` ends the device,
#    and waiting requests get an error.
# 7. A volume in memory does not survive the daemon. The device is removed and created anew.
#
# The kernel logs no error except those of 6 and 7. Prints a line for each check. Exit code 0 if all
# hold. FOREBAY_BIN is the program (built if not set).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH="$PATH:/usr/sbin:/sbin"
"$here/setup.sh"
amount=64M kills=5 quick=false
if [ "${1:-}" = --quick ]; then
    amount=8M kills=2 quick=true
fi
manifest="$here/../../Cargo.toml"
target=$(cargo metadata --format-version 1 --no-deps --manifest-path "$manifest" |
    jq -r .target_directory)
program=${FOREBAY_BIN:-}
if [ -z "$program" ]; then
    cargo build --quiet --release --locked --package forebay --manifest-path "$manifest"
    program=$target/release/forebay
fi
export FOREBAY_GUEST_ROOT=$target/guest
export FOREBAY_GUEST_MODULES='virtio_pci virtio_blk virtio_net crc32c_generic ext4 xfs ublk_drv'
"$here/backports.sh" "$FOREBAY_GUEST_ROOT"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Without debugging symbols: the guest holds it in memory.
objcopy --strip-debug "$program" "$work/forebay"
truncate -s 96M "$work/cache"
truncate -s 512M "$work/backing"

{
    echo "amount=$amount kills=$kills quick=$quick"
    cat <<'G'
set -eu
mkdir -p /tmp/s
configuration() { # NAME NUMBER: of a daemon
    cat <<TOML
[[device]]
name = "cache"
kind = "file"
path = "/dev/d0"
[[device]]
name = "backing"
kind = "file"
path = "/dev/d1"
[cache]
data = "cache"
commit_interval = "60s"
[[volume]]
name = "v"
backing = "backing"
mode = "wb"
[[export]]
volume = "v"
ublk = $2
[server]
reactors = 2
control = "/tmp/s/$1.sock"
metrics = "127.0.0.1:0"
state = "/tmp/s/$1"
TOML
}
configuration a 0 >/tmp/s/a.toml
cat >/tmp/s/m.toml <<TOML
[[device]]
name = "memory"
kind = "mem"
size = "64M"
[[volume]]
name = "m"
backing = "memory"
[[export]]
volume = "m"
ublk = 0
[server]
control = "/tmp/s/m.sock"
metrics = "127.0.0.1:0"
state = "/tmp/s/m"
TOML
daemon=''
start() { # NAME [OPTION...]
    local name=$1 begun
    shift
    begun=$(date +%s)
    : >/tmp/s/said
    forebay serve "$@" "/tmp/s/$name.toml" >/tmp/s/said 2>>/tmp/s/log &
    daemon=$!
    until grep -q '^metrics and status' /tmp/s/said; do
        if ! kill -0 "$daemon" || [ $(($(date +%s) - begun)) -gt 300 ]; then
            tail -n 20 /tmp/s/log
            echo "FAIL forebay does not serve"
            exit 1
        fi
        sleep 0.1
    done
}
refused() { # WORDS COMMAND...: the command fails and says so
    local words=$1
    shift
    if "$@" >/tmp/s/refused 2>&1 || ! grep -q -e "$words" /tmp/s/refused; then
        cat /tmp/s/refused
        echo "FAIL this was to be refused with: $words: $*"
        exit 1
    fi
}
died() {
    kill -9 "$daemon"
    wait "$daemon" 2>/dev/null || true
}
stopped() {
    kill "$daemon"
    wait "$daemon" || { tail -n 20 /tmp/s/log; echo "FAIL the daemon did not end well"; exit 1; }
}
trap 'code=$?; if [ $code != 0 ]; then tail -n 40 /tmp/s/log; dmesg | tail -n 30; fi' EXIT

forebay format --cache /dev/d0 --force >/dev/null
refused 'modprobe ublk_drv' forebay serve /tmp/s/a.toml
refused 'modprobe ublk_drv' forebay check /tmp/s/a.toml
modprobe ublk_drv
modprobe ext4
forebay check /tmp/s/a.toml >/dev/null
echo "DONE without the driver it says so"

start a
q=/sys/block/ublkb0/queue
[ "$(cat $q/write_cache) $(cat $q/fua) $(cat $q/logical_block_size)" = "write back 1 512" ]
[ "$(cat /sys/block/ublkb0/size)" = 1048576 ]
[ "$(cat $q/max_hw_sectors_kb) $(cat /sys/block/ublkb0/ro)" = "512 0" ]
[ "$(ls -d /sys/block/ublkb0/mq/* | wc -l)" = 2 ]
[ "$(cat $q/discard_max_hw_bytes)" -gt 0 ] && [ "$(cat $q/write_zeroes_max_bytes)" -gt 0 ]
echo "DONE the device is what the volume is"

flushes() { awk '{print $16}' "/sys/block/$(readlink /dev/d0)/stat"; }
# The kernel turns an asynchronous O_DSYNC write into a write with FUA, and any other into a write
# and a FLUSH.
for option in sync=dsync fsync=1 fsync=0; do
    sync
    sleep 1
    before=$(flushes)
    fio --name=f --filename=/dev/ublkb0 --direct=1 --ioengine=libaio --rw=write --bs=4k --size=1M \
        --$option >/tmp/s/fio || { cat /tmp/s/fio; exit 1; }
    echo "COUNT $option $(($(flushes) - before))"
done

check() { # what mkfs made
    mount "$1" /mnt
    dd if=/dev/urandom of=/mnt/a bs=1M count=20 2>/dev/null
    sync
    sum=$(md5sum </mnt/a)
    umount /mnt
    mount "$1" /mnt
    echo 3 >/proc/sys/vm/drop_caches
    [ "$(md5sum </mnt/a)" = "$sum" ]
    umount /mnt
}
mkfs.ext4 -q -F /dev/ublkb0
check /dev/ublkb0
e2fsck -fn /dev/ublkb0 >/tmp/s/fsck 2>&1 || { cat /tmp/s/fsck; exit 1; }
echo "DONE ext4"
if [ $quick = false ]; then
    modprobe xfs
    mkfs.xfs -q -f /dev/ublkb0
    check /dev/ublkb0
    xfs_repair -n /dev/ublkb0 >/dev/null 2>&1
    echo "DONE xfs"
fi
verify() {
    fio --name=v --filename=/dev/ublkb0 --direct=1 --ioengine=libaio --iodepth=16 --rw=randrw \
        --bs=4k --size=$amount --verify=crc32c --verify_fatal=1 --verify_backlog=64 --numjobs=2 \
        --offset_increment=$amount "$@"
}
verify >/tmp/s/fio || { cat /tmp/s/fio; exit 1; }
echo "DONE fio verify"
blkdiscard -f /dev/ublkb0
blkdiscard -z -o 0 -l 64M /dev/ublkb0
[ "$(dd if=/dev/ublkb0 bs=1M count=64 2>/dev/null | tr -d '\0' | wc -c)" = 0 ]
echo "DONE discard and write-zeroes"

configuration b 0 | sed 's|/dev/d0|/tmp/s/cache|; s|/dev/d1|/tmp/s/backing|' >/tmp/s/b.toml
truncate -s 64M /tmp/s/cache /tmp/s/backing
forebay format --cache /tmp/s/cache --force >/dev/null
refused "is not this volume's.*process $daemon serves it" forebay serve /tmp/s/b.toml
refused "process $daemon serves it" forebay remove-ublk 0
echo "DONE a number in use is refused"

# As long as the restarts take, which is longer on a busy machine.
(until [ -e /tmp/s/killed ]; do verify --time_based --runtime=12 >/tmp/s/fio 2>&1 || exit 1; done) &
load=$!
for kill in $(seq $kills); do
    sleep 4
    kill -0 $load || { cat /tmp/s/fio; exit 1; }
    died
    [ -b /dev/ublkb0 ]
    [ "$kill" != 1 ] ||
        refused "is not this volume's.*no process serves it" forebay serve /tmp/s/b.toml
    start a
done
touch /tmp/s/killed
wait $load || { cat /tmp/s/fio; exit 1; }
echo "DONE $kills kills under fio"
mkfs.ext4 -q -F /dev/ublkb0
mount /dev/ublkb0 /mnt
(
    number=0
    while [ ! -e /tmp/s/enough ]; do
        dd if=/dev/urandom of=/mnt/new bs=64k count=4 conv=fsync status=none
        mv /mnt/new "/mnt/$number"
        md5sum "/mnt/$number" >>/tmp/s/sums
        number=$((number + 1))
    done
) &
load=$!
for _ in $(seq $kills); do
    sleep 3
    kill -0 $load
    died
    sleep 1
    start a
done
touch /tmp/s/enough
wait $load
echo 3 >/proc/sys/vm/drop_caches
md5sum -c /tmp/s/sums >/tmp/s/compared 2>&1 || { grep -v OK /tmp/s/compared; exit 1; }
grep -q ' /mnt ext4 rw' /proc/mounts
echo "DONE $kills kills under ext4: $(wc -l </tmp/s/sums) files of it are whole"

refused 'is in use' forebay --control /tmp/s/a.sock detach v
stopped
[ -b /dev/ublkb0 ]
(dd if=/dev/urandom of=/mnt/late bs=64k count=4 conv=fsync status=none && touch /tmp/s/late) &
load=$!
sleep 2
[ ! -e /tmp/s/late ]
start a
wait $load
grep -q ' /mnt ext4 rw' /proc/mounts
umount /mnt
e2fsck -fn /dev/ublkb0 >/tmp/s/fsck 2>&1 || { cat /tmp/s/fsck; exit 1; }
stopped
[ ! -e /dev/ublkb0 ] && [ ! -e /dev/ublkc0 ]
echo "DONE a stop under a mounted file system, and one without"
if dmesg | grep -E 'I/O error|EXT4-fs error|WARNING|BUG:'; then exit 1; fi

start a
forebay --control /tmp/s/a.sock detach v >/dev/null
[ ! -e /dev/ublkb0 ]
stopped
start a
echo "DONE a volume that is detached takes its device along"
dd if=/dev/urandom of=/dev/ublkb0 bs=4k count=16 oflag=direct status=none
died
(
    code=0
    dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct status=none 2>/dev/null || code=$?
    echo $code >/tmp/s/waited
) &
load=$!
sleep 1
refused 'ACKNOWLEDGED WRITES MAY BE MISSING.*--without-cache' \
    forebay serve --without-cache v /tmp/s/a.toml
[ ! -e /tmp/s/waited ]
[ "$(forebay remove-ublk 0)" = "/dev/ublkb0 is removed" ]
wait $load
[ "$(cat /tmp/s/waited)" != 0 ]
refused 'no such device' forebay remove-ublk 0
echo "DONE what lacks the cache takes no device over"

start m
mkfs.ext4 -q -F /dev/ublkb0
died
for _ in $(seq 50); do
    [ -e /dev/ublkb0 ] || break
    sleep 0.1
done
[ ! -e /dev/ublkb0 ]
start m
[ "$(dd if=/dev/ublkb0 bs=1M count=64 2>/dev/null | tr -d '\0' | wc -c)" = 0 ]
stopped
[ ! -e /dev/ublkc0 ]
echo "DONE a volume in memory goes with its daemon"
if dmesg | grep -E 'WARNING|BUG:'; then exit 1; fi
echo "END"
G
} >"$work/script"

"$here/image.sh" "$work/image" "$work/forebay"
failed=0 ended=false
declare -A count
hear() {
    while read -r word name rest; do
        case $word in
        DONE) echo "kernel's ublk: $name${rest:+ $rest}: holds" ;;
        COUNT) count[$name]=$rest ;;
        END) ended=true ;;
        *) echo "guest: $word $name $rest" ;;
        esac
    done
}
hear < <("$here/boot.sh" -i "$work/image" -d "$work/cache" -d "$work/backing" -m 2048 -t 900 \
    "$work/script" 2>"$work/boot" || true)
[ $ended = true ] || cat "$work/boot"
echo "256 writes of 4 KiB: ${count[sync=dsync]:-no} flushes of the cache device with O_DSYNC," \
    "${count[fsync=1]:-no} with fsync, ${count[fsync=0]:-no} without"
if [ "${count[sync=dsync]:-0}" -lt 256 ] || [ "${count[fsync=1]:-0}" -lt 256 ] ||
    [ "${count[fsync=0]:-256}" -ge 256 ] || [ $ended = false ]; then
    failed=1
fi
echo "guest ublk: $([ $failed = 0 ] && echo "all hold" || echo "FAILED"), ${SECONDS} s"
exit $failed
