#!/usr/bin/env bash
# Two virtual machines whose nodes share one page cache. Its memory is the PCI device (ivshmem) of
# both, the directory runs on this machine, and the store is a disk of both. Inside the machines,
# ivshmem/main.rs checks:
#
# 1. The second machine maps 256 pages that the first has written. The first use of each costs a
#    message, later uses none, and nothing is read from the disk. The first machine sees at once the
#    stores of the second into its memory.
# 2. Both write the same whole pages at a time, and one page in turns. No page is torn or old.
# 3. The first machine is killed with pages in its memory that the second has not flushed. One fsync
#    reports that.
#
# On this machine, the script checks:
#
# - Each page has one frame in the pool's file, which shows the machines' writes.
# - The disk has the data that fsync promised.
# - The directory ends a machine that is stopped, by the process of its QEMU, which is the node's.
#
# Prints a line for each check, and writes them to RESULT too if that is set
# (docs/results/dpc-machines.txt). Exit code 0 if all hold. FOREBAY_BIN and IVSHMEM_BIN are the
# programs (built if not set).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH="$PATH:/usr/sbin:/sbin"
if ! command -v qemu-system-x86_64 >/dev/null && [ "$(id -u)" -ne 0 ]; then
    echo "SKIPPED guest ivshmem: qemu-system-x86_64 is missing, and this user cannot install it"
    exit 0
fi
"$here/setup.sh"
program=${FOREBAY_BIN:-} node=${IVSHMEM_BIN:-}
if [ -z "$program" ] || [ -z "$node" ]; then
    cd "$here/../.."
    cargo build --quiet --locked --package forebay --package forebay-tests --bin forebay \
        --bin ivshmem
    target=$(cargo metadata --format-version 1 --no-deps | jq -r .target_directory)/debug
    program=${program:-$target/forebay} node=${node:-$target/ivshmem}
fi

work=$(mktemp -d)
pool=$(mktemp -d /dev/shm/forebay-ivshmem-XXXXXX)
directory='' machines=()
# shellcheck disable=SC2317 # the trap calls it
finish() {
    [ -z "$directory" ] || kill -9 "$directory" 2>/dev/null || true
    for machine in "${machines[@]}"; do kill "$machine" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$work" "$pool"
}
trap finish EXIT
say() { echo "$*" | tee -a "$work/result"; }
fail() {
    echo "guest ivshmem: $*" >&2
    tail -n 20 "$work"/log "$work"/first "$work"/second >&2 2>/dev/null || true
    "$program" pagecache status --pool "$pool" >&2 || true
    exit 1
}

truncate -s 4M "$work/disk"
touch "$work/log"
# Emulated machines are slow to renew their leases.
"$program" pagecache directory --source "$work/disk" --pool "$pool" --capacity 16M --lease 20s \
    >"$work/log" 2>&1 &
directory=$!
for _ in $(seq 100); do
    ! grep -q ready "$work/log" || break
    sleep 0.1
done
grep -q ready "$work/log" || fail "the directory does not start"

cat >"$work/guest" <<G
set -e
modprobe virtio_console
modprobe 9pnet_virtio
modprobe 9p
mkdir -p $pool $work
mount -t 9p -o trans=virtio,version=9p2000.L,access=any pool $pool
ln -s /dev/d0 $work/disk
for device in /sys/bus/pci/devices/*; do
    number=\$(cat \$device/vendor \$device/device | tr '\n' ' ')
    [ "\$number" != '0x1af4 0x1110 ' ] || bar=\$device/resource2
done
mount --bind \$bar $pool/frames
for port in /sys/class/virtio-ports/*; do
    [ "\$(cat \$port/name)" != directory ] || way=/dev/\${port##*/}
done
socat UNIX-LISTEN:/run/directory.sock,fork,max-children=1 OPEN:\$way,rdwr &
until [ -S /run/directory.sock ]; do sleep 0.1; done
mount --bind /run/directory.sock $pool/directory.sock
echo "INFO memory of \$bar: \$(stat -c %s \$bar) bytes"
G
sed '$ a exec ivshmem '"$pool"' first' "$work/guest" >"$work/script-first"
sed '$ a ivshmem '"$pool"' second' "$work/guest" >"$work/script-second"
modules="virtio_pci virtio_blk virtio_net crc32c_generic virtio_console 9pnet_virtio 9p"
FOREBAY_GUEST_MODULES=$modules "$here/image.sh" "$work/image" socat "$node"

boot() { # NAME [OPTION]...
    local name=$1
    shift
    "$here/boot.sh" -i "$work/image" -d "$work/disk" -p "$pool" -m 768 -t 300 "$@" \
        "$work/script-$name" >"$work/$name" 2>&1 &
    machines+=($!)
}
boot first -k READY
boot second
status() { "$program" pagecache status --pool "$pool" --json; }
wait_for() { # WORDS FILE
    for _ in $(seq 3000); do
        ! grep -q "$1" "$2" || return 0
        kill -0 "${machines[-1]}" 2>/dev/null || grep -q "$1" "$2" ||
            fail "the machine has ended before: $1"
        sleep 0.1
    done
    fail "never: $1"
}
wait_for "^READY" "$work/first"
alive=$(status)
pages=$(jq '[.pages[]] | add' <<<"$alive")
[ "$(jq '.nodes | length' <<<"$alive")" -eq 2 ] || fail "two nodes, and not: $alive"
# The headers of the frames: generation, sequence, clean, inode, page, ...
frames=$(jq '.capacity_bytes / .page_bytes' <<<"$alive")
od -An -v -t u8 -w64 -N $((frames * 64)) "$pool/frames" |
    awk '$1 > 0 {print $5, NR - 1}' >"$work/frames"
[ "$(wc -l <"$work/frames")" -eq "$pages" ] ||
    fail "$pages pages and $(wc -l <"$work/frames") frames that hold one"
# Pages with two frames. A planted duplicate shows that the check can fail.
twice() { cut -d ' ' -f 1 | sort | uniq -d; }
[ "$( (cat "$work/frames" && tail -n 1 "$work/frames") | twice | wc -l)" -eq 1 ] ||
    fail "a second copy would not be found"
[ -z "$(twice <"$work/frames")" ] || fail "two frames hold the same page"
# The pages that the second has written into the first's memory, as this machine sees them.
word() { # FILE OFFSET
    od -An -v -t u8 -j "$2" -N 4096 "$1" -w8 | sort -u | tr -d ' '
}
for page in 1 64; do
    frame=$(awk -v page=$page '$1 == page {print $2}' "$work/frames")
    [ "$(word "$pool/frames" $((frames * 64 + frame * 4096)))" = $((page * 256 + 4)) ] ||
        fail "page $page in the pool's file is another"
    [ "$(word "$work/disk" $((page * 4096)))" = $((page * 256 + 3)) ] ||
        fail "page $page on the disk is not what was flushed"
done
say "one copy: $pages pages in $pages frames of the pool's file, which shows what the machines" \
    "wrote; $(jq .filled <<<"$alive") fills, $(jq .evicted <<<"$alive") evicted"

for which in 0 1; do
    code=0
    wait "${machines[$which]}" || code=$?
    codes[which]=$code
done
[ "${codes[0]}" -eq 124 ] || fail "the first machine was to be killed"
[ "${codes[1]}" -eq 0 ] || fail "the second machine: exit code ${codes[1]}"
# A killed machine's output is in its console at the end.
for one in first second; do
    tr -d '\r' <"$work/$one" |
        awk '/^DONE/ && !seen[$0]++ {sub("DONE", "'$one':"); sub("'"$work"'/", ""); print}' \
            >"$work/$one-done"
    say "$(cat "$work/$one-done")"
done
[ "$(wc -l <"$work/first-done")" -eq 2 ] || fail "the first has not done all"
[ "$(wc -l <"$work/second-done")" -eq 5 ] || fail "the second has not done all"
for page in 1 64; do
    [ "$(word "$work/disk" $((page * 4096)))" = $((page * 256 + 5)) ] ||
        fail "page $page on the disk is not what was flushed"
done
lost=$(status | jq .lost_pages)
[ "$lost" -ge 64 ] || fail "$lost pages are lost with the first machine"
say "the first machine killed: $lost pages may be lost by the directory's account, and the disk" \
    "has what fsync promised"

# A machine that does not answer: the process of its QEMU is ended.
boot first -q "$work/pid"
for _ in $(seq 600); do
    ! status | jq -e '.nodes[] | select(.state == "alive")' >/dev/null || break
    sleep 0.1
done
machine=$(cat "$work/pid")
[ "$(status | jq '.nodes[] | select(.state == "alive") | .pid')" = "$machine" ] ||
    fail "the node's process is not the machine's"
kill -STOP "$machine"
for _ in $(seq 400); do
    kill -0 "$machine" 2>/dev/null || break
    sleep 0.1
done
! kill -0 "$machine" 2>/dev/null || fail "a machine that is stopped still has its memory"
[ "$(status | jq .fenced)" -ge 1 ] || fail "nobody was fenced"
say "a machine that was stopped was ended by its lease, and its node with it"
[ -z "${RESULT:-}" ] || cp "$work/result" "$RESULT"
