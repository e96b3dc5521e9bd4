#!/usr/bin/env bash
# A virtual machine with a disk by vhost-user. The disk is a volume on a transit cache, over a block
# translation table, over emulated persistent memory. That memory is a file with emulated latencies,
# so the times here mean nothing.
#
# 1. fio's verify, 4 KiB and of all sizes.
# 2. On ext4, after filebench's workloads: fileserver, varmail, webserver, webproxy. The daemon is
#    killed (-9) and restarted in the middle of each. The machine continues, and every file is
#    whole, also after a new mount of the file system.
# 3. For each workload, the bytes that the machine wrote, that the volume got, and that the table
#    got once the machine had flushed. The table gets no less than was written, except data that was
#    overwritten in the transit cache. Some milliseconds before each kill do not count.
#
# Prints a line for each check. Exit code 0 if all hold. FOREBAY_BIN is the program (built if not
# set).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH="$PATH:/usr/sbin:/sbin"
"$here/setup.sh"
rounds=120
[ "${1:-}" != --quick ] || rounds=30
program=${FOREBAY_BIN:-}
if [ -z "$program" ]; then
    manifest="$here/../../Cargo.toml"
    cargo build --quiet --release --locked --package forebay --manifest-path "$manifest"
    target=$(cargo metadata --format-version 1 --no-deps --manifest-path "$manifest" |
        jq -r .target_directory)
    program=$target/release/forebay
fi

work=$(mktemp -d)
daemon=''
# shellcheck disable=SC2317 # the trap calls it
finish() {
    [ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null || true
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

cat >"$work/forebay.toml" <<TOML
device = [
    { name = "file", kind = "pmem", path = "memory" },
    { name = "memory", kind = "emulate", on = "file", profile = "optane-dimm" },
    { name = "table", kind = "btt", on = "memory" },
    { name = "fast", kind = "transit", on = "table", capacity = "16M" },
]
[[volume]]
name = "vm-disk"
backing = "fast"
[[export]]
volume = "vm-disk"
vhost-user-blk = "vm.sock"
[server]
reactors = 2
control = "control.sock"
metrics = "127.0.0.1:0"
state = "state"
TOML
"$program" format --btt "$work/memory" --create 320M >"$work/log"
start() {
    (cd "$work" && exec "$program" serve forebay.toml) >>"$work/log" 2>&1 </dev/null &
    daemon=$!
}
start
for _ in $(seq 200); do
    [ ! -S "$work/vm.sock" ] || break
    sleep 0.05
done
status() { "$program" status --json --control "$work/control.sock"; }

{
    echo "rounds=$rounds"
    cat <<'G'
set -e
modprobe ext4
d=/dev/vm-disk
stat=/sys/block/$(basename $(readlink $d))/stat
verify() {
    fio --name=v --filename=$d --direct=1 --ioengine=libaio --iodepth=8 --rw=randrw --size=64M \
        --verify=crc32c --verify_fatal=1 "$@" >/tmp/fio || { cat /tmp/fio; exit 1; }
}
verify --bs=4k --io_size=8M --numjobs=2 --offset_increment=64M
verify --bsrange=4k-256k --io_size=32M
echo "DONE fio verify"

mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 $d # nothing writes by itself later
mount $d /mnt
cd /mnt
content() { # NAME GENERATION BYTES
    yes "$1 $2" | head -c "$3"
}
# A file's name and its sum after the last write to it.
declare -A sum
remember() { sum[$1]=$(md5sum <"$1"); }
create() { # NAME GENERATION BYTES [dd's option]
    content "$1" "$2" "$3" | dd of="$1" bs=64k iflag=fullblock status=none $4
    remember "$1"
}
append() { # NAME GENERATION BYTES [dd's option]
    content "$1" "$2" "$3" |
        dd of="$1" bs=64k iflag=fullblock oflag=append conv=notrunc${4:+,$4} status=none
    remember "$1"
}
whole() {
    [ "$(md5sum <"$1")" = "${sum[$1]}" ] || { echo "FAIL $1 is not what was written"; exit 1; }
}
any() { echo "$mix.$((RANDOM % 20))"; }
fileserver() {
    local file
    file=$(any)
    create "$file" "$1" 131072
    append "$file" "$1" 16384
    whole "$(any)"
    file=$(any)
    rm -f "$file"
    create "$file" "$1" 65536
}
varmail() {
    local file
    file=$(any)
    rm -f "$file"
    create "$file" "$1" 16384 conv=fsync
    file=$(any)
    append "$file" "$1" 4096 fsync
    whole "$file"
}
webserver() {
    for _ in 1 2 3 4 5 6; do whole "$(any)"; done
    append "$mix.log" "$1" 16384
}
webproxy() {
    local file
    file=$(any)
    rm -f "$file"
    create "$file" "$1" 16384
    for _ in 1 2 3 4; do whole "$(any)"; done
    append "$mix.log" "$1" 16384
}
for mix in fileserver varmail webserver webproxy; do
    sync
    echo "SNAP $mix before $(awk '{print $7 * 512}' $stat)"
    sleep 1
    for number in $(seq 0 19); do create "$mix.$number" first 16384; done
    create "$mix.log" first 16384
    for round in $(seq $rounds); do
        [ "$round" != $((rounds / 2)) ] || echo "KILL $mix"
        $mix "$round"
    done
    sync
    echo "SNAP $mix after $(awk '{print $7 * 512}' $stat)"
    sleep 1
    echo "DONE $mix: $rounds rounds, the daemon killed in the middle"
done
cd /
umount /mnt
e2fsck -fn $d >/tmp/fsck 2>&1 || { cat /tmp/fsck; exit 1; }
mount $d /mnt
echo 3 >/proc/sys/vm/drop_caches
cd /mnt
for file in "${!sum[@]}"; do whole "$file"; done
[ "$(ls | grep -vc lost+found)" = "${#sum[@]}" ]
echo "DONE all ${#sum[@]} files are whole after the file system was mounted anew"
cd /
umount /mnt
[ "$(dmesg | grep -c 'I/O error')" = 0 ]
echo "DONE the kernel has seen no error"
G
} >"$work/script"

"$here/image.sh" "$work/image"
failed=0 ended=''
# Counts of the daemon, from its start: bytes that the volume got, that the table got, and that were
# overwritten before. Killed daemons had counted the second of each.
declare -A before
now=() past=(0 0 0)
count() {
    local counts at
    counts=$(status | jq -r '[([.devices[].write_bytes] | add),
        (.transits[0] | (.evicted + .bypassed) * 4096, .rewritten * 4096)] | @sh')
    read -ra counts <<<"$counts"
    for at in 0 1 2; do now[at]=$((past[at] + counts[at])); done
}
while read -r word name rest; do
    case $word in
    DONE) echo "$name ${rest}: holds" ;;
    KILL)
        count
        past=("${now[@]}")
        kill -9 "$daemon"
        wait "$daemon" 2>/dev/null || true
        start
        ;;
    SNAP)
        read -r when bytes <<<"$rest"
        count
        if [ "$when" = before ]; then
            before[$name]="$bytes ${now[*]}"
            continue
        fi
        read -ra old <<<"${before[$name]}"
        wrote=$((bytes - old[0])) took=$((now[0] - old[1]))
        given=$((now[1] - old[2])) over=$((now[2] - old[3]))
        holds=holds
        if [ $((took * 100)) -lt $((wrote * 95)) ] ||
            [ $(((given + over) * 100)) -lt $((wrote * 95)) ]; then
            holds=FAILED failed=1
        fi
        echo "$name: the machine wrote $wrote bytes, the volume took $took, the table was given" \
            "$given, $over were written over before: $holds"
        ;;
    GUEST) ended=$name ;;
    *) echo "guest: $word $name $rest" ;;
    esac
done < <("$here/boot.sh" -i "$work/image" -v "$work/vm.sock" -t 900 "$work/script" &&
    echo "GUEST 0" || echo "GUEST $?")
if [ "$ended" != 0 ]; then
    echo "guest transit: the guest ended with ${ended:-nothing}"
    failed=1
fi
echo "guest transit: $([ $failed = 0 ] && echo "all hold" || echo "FAILED"), ${SECONDS} s"
[ "$failed" = 0 ] || tail -n 20 "$work/log"
exit "$failed"
