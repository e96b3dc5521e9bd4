#!/usr/bin/env bash
# boot.sh OPTION... SCRIPT: boots the guest under QEMU's software emulation (about six seconds) and
# runs SCRIPT in it. Prints the script's output as it comes, and exits with its code. The host's
# 127.0.0.1 is 10.0.2.2 inside. Options:
#
# - -i IMAGE: the initramfs.
# - -d DISK: a raw file, which is /dev/d0, /dev/d1... inside. May be repeated.
# - -v SOCKET: a disk by vhost-user with two queues. The machine reconnects when it is closed.
# - -n NVDIMM: a file of whole MiB as persistent memory. With -l its last 128 KiB are labels.
# - -p POOL: a page cache's pool, of which the machine becomes a node. Its memory is that of an
#   ivshmem device inside, its directory's socket is the serial port "directory", and the pool
#   itself is the 9p share "pool". The disks are shared with other machines.
# - -q FILE: gets the number of the machine's process.
# - -k MARK: kills the machine two seconds after the script has printed MARK.
# - -m MEGABYTES, -t SECONDS: memory and timeout.
set -euo pipefail
# shellcheck source=tests/guest/kernel.sh
. "$(dirname "$0")/kernel.sh"
image='' memory=1024 patience=600 disks=() nvdimm='' labels='' mark='' socket='' pool=''
number=/dev/null
while getopts i:d:v:n:lp:q:k:m:t: option; do
    case $option in
    i) image=$OPTARG ;;
    d) disks+=("$OPTARG") ;;
    v) socket=$OPTARG ;;
    n) nvdimm=$OPTARG ;;
    l) labels=,label-size=128K ;;
    p) pool=$OPTARG ;;
    q) number=$OPTARG ;;
    k) mark=$OPTARG ;;
    m) memory=$OPTARG ;;
    t) patience=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
script=$1
work=$(mktemp -d)
machine=''
# shellcheck disable=SC2317 # the trap calls it
finish() {
    [ -z "$machine" ] || kill -9 "$machine" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

{
    printf '%-512s' "$(stat -c %s "$script")"
    cat "$script"
} >"$work/ctl"
truncate -s 1M "$work/ctl"
# One queue a disk, so that flushes end in the order of their arrival. dm-log-writes needs that.
drives=()
drive() {
    local disk="virtio-blk-pci,drive=$1,serial=$1,num-queues=1,write-cache=on"
    drives+=(-drive "file=$2,format=raw,if=none,id=$1,cache=unsafe${pool:+,file.locking=off}"
        -device "$disk${pool:+,share-rw=on}")
}
drive ctl "$work/ctl"
for index in "${!disks[@]}"; do
    drive "d$index" "${disks[$index]}"
done

hardware=(-machine pc -m "$memory")
if [ -n "$nvdimm" ]; then
    size=$(stat -c %s "$nvdimm")
    hardware=(-machine "pc,nvdimm=on" -m "$memory,slots=2,maxmem=8G"
        -object "memory-backend-file,id=n0mem,share=on,mem-path=$nvdimm,size=$size"
        -device "nvdimm,id=nvdimm0,memdev=n0mem$labels")
fi

if [ -n "$socket" ]; then
    # The daemon that serves the disk accesses the guest's memory.
    hardware=(-machine "pc,memory-backend=ram" -m "$memory"
        -object "memory-backend-memfd,id=ram,size=${memory}M,share=on"
        -chardev "socket,id=disk,path=$socket,reconnect=1"
        -device "vhost-user-blk-pci,chardev=disk,num-queues=2")
fi

if [ -n "$pool" ]; then
    size=$(stat -c %s "$pool/frames")
    hardware+=(-object "memory-backend-file,id=frames,share=on,mem-path=$pool/frames,size=$size"
        -device "ivshmem-plain,memdev=frames"
        -chardev "socket,id=directory,path=$pool/directory.sock,reconnect=1"
        -device virtio-serial-pci -device "virtserialport,chardev=directory,name=directory"
        -fsdev "local,id=pool,path=$pool,security_model=none"
        -device "virtio-9p-pci,fsdev=pool,mount_tag=pool")
fi

# This emulation's cmpxchg16b leaves garbage in the flags, which kills newer kernels within seconds.
# So the processor has none. On a busy machine an emulated timer does not tick while the kernel
# tests it.
: >"$work/console"
qemu-system-x86_64 -accel tcg,thread=multi -cpu max,-cx16 -smp 2 "${hardware[@]}" \
    -nographic -no-reboot -monitor none \
    -kernel "$guest_root/boot/vmlinuz-$kernel" -initrd "$image" \
    -append "console=ttyS0 panic=-1 mitigations=off quiet no_timer_check" \
    -netdev user,id=n0 -device virtio-net-pci,netdev=n0,romfile= "${drives[@]}" \
    -serial "file:$work/console" </dev/null >"$work/qemu" 2>&1 &
machine=$!
echo "$machine" >"$number"
(sleep "$patience" && kill -9 "$machine") >/dev/null 2>&1 &
watchdog=$!
if [ -n "$mark" ]; then
    (until grep -q "^$mark" "$work/console"; do
        kill -0 "$machine" || exit
        sleep 0.2
    done && sleep 2 && kill -9 "$machine") >/dev/null 2>&1 &
fi
tail -n +1 -f --pid="$machine" "$work/console" |
    sed -u -n -e 's|\r$||' -e '/^=====BEGIN/,/^=====END/{/^=====/!p}'
wait "$machine" 2>/dev/null || true
machine=''
# The sleep inside would outlive its shell and hold the inherited files.
pkill -P "$watchdog" 2>/dev/null || true
kill "$watchdog" 2>/dev/null || true
code=$(tr -d '\r' <"$work/console" | sed -n 's/^=====END //p')
if [ -z "$code" ]; then
    echo "guest: the machine ended, or was ended after $patience s, before the script did" >&2
    tail -n 20 "$work/console" "$work/qemu" >&2
    exit 124
fi
exit "$code"
