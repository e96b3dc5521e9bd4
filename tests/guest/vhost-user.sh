#!/usr/bin/env bash
# A virtual machine whose disk is a volume of `forebay serve` by vhost-user: QEMU's front, the
# kernel's virtio-blk.
#
# 1. The kernel's view: size, serial number, queues, a volatile write cache.
# 2. 256 O_DSYNC writes of 4 KiB at queue depth 1 are covered by at least 256 flushes or FUA writes
#    of the cache device, by forebay's count. The same writes without O_DSYNC are not covered, which
#    shows that the check can fail.
# 3. ext4 and fsck, fio's verify on several queues, discard, write-zeroes (`--quick`: less of fio).
# 4. The daemon is killed (-9) under fio's verify and restarted, five times (`--quick`: twice). The
#    machine's requests continue.
# 5. The daemon is stopped cleanly under the same load and restarted, three times (`--quick`: once).
#    The machine's requests continue.
# 6. While the machine has requests in flight, the daemon is stopped, the volume is served to
#    others, and the daemon is restarted. It refuses the machine's list of requests in flight, and
#    executes none of them.
# 7. The machine is killed with requests in flight. Another one gets the disk, and finds the flushed
#    data.
#
# The kernel logs no error. Prints a line for each check. Exit code 0 if all hold. FOREBAY_BIN is
# the program (built if not set).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH="$PATH:/usr/sbin:/sbin"
"$here/setup.sh"
amount=32M kills=5 stops=3
[ "${1:-}" != --quick ] || amount=8M kills=2 stops=1
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
daemon=''
# shellcheck disable=SC2317 # the trap calls it
finish() {
    [ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

truncate -s 96M "$work/cache"
truncate -s 512M "$work/backing"
cat >"$work/forebay.toml" <<TOML
[[device]]
name = "cache"
kind = "file"
path = "cache"
[[device]]
name = "backing"
kind = "file"
path = "backing"
[cache]
data = "cache"
journal = "journal"
commit_interval = "60s"
[[volume]]
name = "vm-disk"
backing = "backing"
mode = "wb"
[[export]]
volume = "vm-disk"
vhost-user-blk = "vm.sock"
[server]
reactors = 2
control = "control.sock"
metrics = "127.0.0.1:0"
state = "state"
TOML
# The same volume for another client.
sed 's|^vhost-user-blk = .*|nbd = "unix:others.sock"|' "$work/forebay.toml" >"$work/others.toml"
"$program" format --cache "$work/cache" >"$work/log"
start() { # CONFIGURATION
    (cd "$work" && exec "$program" serve "$1") >>"$work/log" 2>&1 </dev/null &
    daemon=$!
}
# Stops cleanly.
stop() {
    local code=0
    kill -TERM "$daemon"
    wait "$daemon" || code=$?
    if [ "$code" != 0 ]; then
        echo "the daemon ended with $code: FAILED"
        failed=1
    fi
}
start forebay.toml
status() { "$program" status --json --control "$work/control.sock"; }
for _ in $(seq 200); do
    [ ! -S "$work/vm.sock" ] || break
    sleep 0.05
done
durable() { status | jq '[.devices[] | select(.role == "cache") | .flushes + .fua_writes] | add'; }

cat >"$work/script" <<G
set -e
modprobe ext4
d=/dev/vm-disk
b=\$(basename \$(readlink \$d))
q=/sys/block/\$b/queue
echo "INFO write_cache=\$(cat \$q/write_cache | tr ' ' '-')," \\
    "\$(cat /sys/block/\$b/size) sectors of 512, logical block \$(cat \$q/logical_block_size)," \\
    "queues \$(ls /sys/block/\$b/mq | wc -l)"
[ "\$(cat /sys/block/\$b/size)" = 1048576 ]
[ "\$(cat \$q/write_cache)" = "write back" ]
[ "\$(ls /sys/block/\$b/mq | wc -l)" = 2 ]
echo "DONE size, serial number, queues and write cache are what they are to be"
write() { # FLAGS NAME
    sleep 1
    echo "SNAP \$2 before"
    sleep 1
    dd if=/dev/urandom of=\$d bs=4k count=$writes oflag=\$1 conv=notrunc status=none
    echo "SNAP \$2 after"
    sleep 1
}
write direct,dsync dsync
write direct plain
mkfs.ext4 -q -F \$d
mount \$d /mnt
dd if=/dev/urandom of=/mnt/a bs=1M count=20 2>/dev/null
sync
sum=\$(md5sum </mnt/a)
umount /mnt
e2fsck -fn \$d >/tmp/fsck 2>&1 || { cat /tmp/fsck; exit 1; }
mount \$d /mnt
echo 3 >/proc/sys/vm/drop_caches
[ "\$(md5sum </mnt/a)" = "\$sum" ]
umount /mnt
echo "DONE ext4"
for rw in randrw randwrite; do
    fio --name=v --filename=\$d --direct=1 --ioengine=libaio --iodepth=16 --rw=\$rw --bs=4k \\
        --size=64M --numjobs=2 --offset_increment=64M --io_size=8M --verify=crc32c \\
        --verify_fatal=1 >/tmp/fio || { cat /tmp/fio; exit 1; }
done
fio --name=v --filename=\$d --direct=1 --ioengine=libaio --iodepth=8 --rw=randrw --bsrange=512-1m \\
    --size=64M --io_size=$amount --verify=crc32c --verify_fatal=1 >/tmp/fio ||
    { cat /tmp/fio; exit 1; }
echo "DONE fio verify on both queues"
dd if=/dev/urandom of=\$d bs=1M count=8 oflag=direct status=none
blkdiscard -f -o 0 -l 4M \$d 2>/dev/null
blkdiscard -z -o 4M -l 4M \$d
[ "\$(dd if=\$d bs=1M count=8 iflag=direct 2>/dev/null | tr -d '\\0' | wc -c)" = 0 ]
echo "DONE discard and write-zeroes"
fio --name=k --filename=\$d --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=4k \\
    --size=48M --numjobs=2 --offset_increment=64M --time_based --runtime=$((kills * 8)) \\
    --verify=crc32c --verify_fatal=1 --verify_backlog=256 >/tmp/fio 2>&1 &
load=\$!
for _ in \$(seq $kills); do
    sleep 4
    kill -0 \$load
    echo "KILL"
    sleep 3
done
wait \$load || { cat /tmp/fio; exit 1; }
echo "DONE fio verify on both queues while the daemon was killed $kills times"
fio --name=s --filename=\$d --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=4k \\
    --size=48M --numjobs=2 --offset_increment=64M --time_based --runtime=$((stops * 8)) \\
    --verify=crc32c --verify_fatal=1 --verify_backlog=256 >/tmp/fio 2>&1 &
load=\$!
for _ in \$(seq $stops); do
    sleep 4
    kill -0 \$load
    echo "STOP"
    sleep 3
done
wait \$load || { cat /tmp/fio; exit 1; }
echo "DONE fio verify on both queues while the daemon was stopped and started $stops times"
[ "\$(dmesg | grep -c 'I/O error')" = 0 ]
echo "DONE the kernel has seen no error"
mkfs.ext4 -q -F \$d
mount \$d /mnt
echo "what was flushed" >/mnt/kept
sync
fio --name=k --directory=/mnt --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=4k \\
    --size=64M --time_based --runtime=120 >/dev/null 2>&1 &
sleep 3
echo "REFUSE"
sleep 40
echo "DIE"
sleep 60
G
cat >"$work/again" <<'G'
set -e
modprobe ext4
mount /dev/vm-disk /mnt
[ "$(cat /mnt/kept)" = "what was flushed" ]
umount /mnt
e2fsck -fn /dev/vm-disk >/tmp/fsck 2>&1 || { cat /tmp/fsck; exit 1; }
echo "DONE another machine finds what was flushed"
G

"$here/image.sh" "$work/image"
failed=0 ended='' refusals='the virtual machine had another disk'
# Another client of the volume, and then the machine's daemon.
refuse() {
    stop
    rm -f "$work/others.sock"
    start others.toml
    for _ in $(seq 200); do
        [ ! -S "$work/others.sock" ] || break
        sleep 0.05
    done
    stop
    start forebay.toml
    for _ in $(seq 200); do
        ! grep -q "$refusals" "$work/log" || break
        sleep 0.1
    done
    # QEMU reconnects.
    sleep 3
    local times served
    times=$(grep -c "$refusals" "$work/log" || true)
    served=$(status | jq '[.volumes[].operations[].count] | add')
    if [ "$times" -gt 0 ] && [ "$served" = 0 ]; then
        echo "a list of requests in flight from before others had the volume is refused" \
            "($times times), and none of it is done: holds"
    else
        echo "a list of requests in flight from before others had the volume: $times refusals," \
            "$served requests: FAILED"
        failed=1
    fi
}
declare -A before
hear() {
    while read -r word name rest; do
        case $word in
        INFO) echo "the kernel sees $name ${rest}" ;;
        DONE) echo "$name ${rest}: holds" ;;
        DIE) echo "the machine is killed under load" ;;
        KILL)
            kill -9 "$daemon"
            wait "$daemon" 2>/dev/null || true
            start forebay.toml
            ;;
        STOP)
            stop
            start forebay.toml
            ;;
        REFUSE) refuse ;;
        SNAP)
            now=$(durable)
            if [ "$rest" = before ]; then
                before[$name]=$now
                continue
            fi
            count=$((now - before[$name]))
            holds=true
            case $name in
            dsync) [ "$count" -ge "$writes" ] || holds=false ;;
            plain) [ "$count" -lt "$writes" ] || holds=false ;;
            esac
            echo "$writes writes, $name: $count flushes and FUA writes:" \
                "$([ $holds = true ] && echo holds || echo FAILED)"
            [ $holds = true ] || failed=1
            ;;
        GUEST) ended=$name ;;
        *) echo "guest: $word $name $rest" ;;
        esac
    done
}
boot() {
    "$here/boot.sh" -i "$work/image" -v "$work/vm.sock" -t 600 "$@" &&
        echo "GUEST 0" || echo "GUEST $?"
}
hear < <(boot -k DIE "$work/script" 2>"$work/killed")
# The machine was killed, as planned.
if ! grep -q "the machine ended" "$work/killed"; then
    echo "guest vhost-user: the first machine ended with ${ended:-nothing}"
    failed=1
fi
hear < <(boot "$work/again")
if [ "$ended" != 0 ]; then
    echo "guest vhost-user: the second machine ended with ${ended:-nothing}"
    failed=1
fi
[ "$failed" = 0 ] || tail -n 20 "$work/log"
echo "guest vhost-user: $([ $failed = 0 ] && echo "all hold" || echo "FAILED"), ${SECONDS} s"
exit "$failed"
