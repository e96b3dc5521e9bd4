#!/usr/bin/env bash
# Power cuts under a real kernel: see powercut/main.rs. In the guest, forebay runs on two parts of
# one dm-log-writes device, once for each mode and durability. Afterwards the image of each power
# cut is opened and compared here.
#
# `--quick` writes less. Prints a line for each setup and, with FOREBAY_ROWS set, also a line `ROW
# {json}`. Exit code 0 if all hold. FOREBAY_BIN and POWERCUT_BIN are the programs (built if not
# set). With KEEP=FOLDER the record stays there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/setup.sh"
operations=1200 shorter=400 subsets=2
[ "${1:-}" != --quick ] || operations=150 shorter=50 subsets=1

program=${FOREBAY_BIN:-} powercut=${POWERCUT_BIN:-}
if [ -z "$program" ] || [ -z "$powercut" ]; then
    cd "$here/../.."
    cargo build --quiet --release --locked --package forebay
    cargo build --quiet --release --locked --package forebay-tests --bin powercut
    target=$(cargo metadata --format-version 1 --no-deps | jq -r .target_directory)/release
    program=${program:-$target/forebay} powercut=${powercut:-$target/powercut}
fi

work=${KEEP:-$(mktemp -d)}
mkdir -p "$work"
# shellcheck disable=SC2317 # the trap calls it
finish() { [ -n "${KEEP:-}" ] || rm -rf "$work"; }
trap finish EXIT

# Cases: name | mode | durability | operations. The cache is smaller than the volume.
setups=(
    "wb-flush|wb|flush|$operations" "wb-sync|wb|sync|$operations"
    "wt-flush|wt|flush|$shorter" "wt-sync|wt|sync|$shorter"
    "wi-flush|wi|flush|$shorter" "wi-sync|wi|sync|$shorter"
    "wa-flush|wa|flush|$shorter" "wo-flush|wo|flush|$shorter" "pt-flush|pt|flush|$shorter"
)
MIB=$((1 << 20))
cache=$((6 * MIB)) volume=$((16 * MIB)) record=$((512 * MIB)) acknowledged=$((8 * MIB))
truncate -s $((${#setups[@]} * (cache + volume))) "$work/d0"
truncate -s $((${#setups[@]} * record)) "$work/d1"
truncate -s $((${#setups[@]} * acknowledged)) "$work/d2"

{
    cat <<G
set -e
export DM_DISABLE_UDEV=1
modprobe dm-log-writes
mkdir -p /etc /run/forebay
linear() { # NAME DEVICE FROM LENGTH, bytes
    dmsetup create \$1 --table "0 \$((\$4 / 512)) linear \$2 \$((\$3 / 512))"
}
try() { # INDEX NAME MODE DURABILITY OPERATIONS
    linear medium /dev/d0 \$((\$1 * $((cache + volume)))) $((cache + volume))
    linear record /dev/d1 \$((\$1 * $record)) $record
    dmsetup create cut --table \\
        "0 $(((cache + volume) / 512)) log-writes /dev/mapper/medium /dev/mapper/record"
    linear cache /dev/mapper/cut 0 $cache
    linear backing /dev/mapper/cut $cache $volume
    mkdir -p /tmp/\$2
    cd /tmp/\$2
    cat >forebay.toml <<TOML
[[device]]
name = "cache"
kind = "file"
path = "/dev/mapper/cache"
[[device]]
name = "backing"
kind = "file"
path = "/dev/mapper/backing"
[cache]
data = "cache"
durability = "\$4"
journal = "/dev/shm/journal"
[[volume]]
name = "v"
backing = "backing"
mode = "\$3"
[[export]]
volume = "v"
nbd = "unix:nbd.sock"
[server]
control = "control.sock"
metrics = "127.0.0.1:0"
state = "state"
TOML
    forebay format --cache /dev/mapper/cache >log 2>&1 || { cat log; exit 1; }
    forebay serve forebay.toml >>log 2>&1 &
    daemon=\$!
    for i in \$(seq 100); do [ -S nbd.sock ] && break; sleep 0.1; done
    powercut load nbd.sock v cut \$5 \$((7 + \$1)) acknowledged || { cat log; exit 1; }
    kill -9 \$daemon
    wait \$daemon 2>/dev/null || true
    rm -f /dev/shm/journal
    dd if=acknowledged of=/dev/d2 bs=64k seek=\$((\$1 * $((acknowledged / 65536)))) \\
        conv=notrunc,fsync status=none
    for name in cache backing cut record medium; do dmsetup remove --retry \$name; done
    echo "\$2: written, \$(cut -d' ' -f1 /proc/uptime) s after boot"
}
G
    for index in "${!setups[@]}"; do
        IFS='|' read -r name mode durability count <<<"${setups[$index]}"
        echo "try $index $name $mode $durability $count"
    done
} >"$work/script"
# The names that the script uses.
mkdir -p "$work/bin"
cp "$program" "$work/bin/forebay"
cp "$powercut" "$work/bin/powercut"
"$here/image.sh" "$work/image" "$work/bin/forebay" "$work/bin/powercut"
"$here/boot.sh" -i "$work/image" -d "$work/d0" -d "$work/d1" -d "$work/d2" -t 1800 \
    "$work/script" || {
    echo "guest power cuts: the guest failed" >&2
    exit 1
}
echo "guest power cuts: written after $SECONDS s; now every cut is opened"

# As many at a time as there are processors.
for index in "${!setups[@]}"; do
    IFS='|' read -r name mode durability count <<<"${setups[$index]}"
    echo "$name" "$mode" "$durability" "$work/d1@$((index * record))" \
        "$work/d2@$((index * acknowledged))" "$cache" "$volume" "$subsets"
done | xargs -P "$(nproc)" -L 1 "$powercut" check && code=0 || code=1
echo "guest power cuts: $([ "$code" = 0 ] && echo "all hold" || echo "FAILED"), $SECONDS s"
exit "$code"
