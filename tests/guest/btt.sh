#!/usr/bin/env bash
# Block translation tables are exchanged with the kernel's nd_btt, on an emulated NVDIMM whose image
# is a file here:
#
# 1. The guest opens a table that was made and filled here (blocks of 4096 and 512 bytes). Every
#    block has its content, and data that the guest writes is read here.
# 2. A table that the kernel made and filled is opened here. Every block has its content, and data
#    written here is read by the guest.
# 3. The machine is killed while the kernel writes. The table opens here, and every block is mapped
#    once or free once.
# 4. The checks above have no labels on the NVDIMM, so the tables are of version 1.1. With labels
#    the kernel's table is of version 2.0. It is opened here, and the guest opens one of ours in its
#    place.
#
# Prints a line for each check. Exit code 0 if all hold. FOREBAY_BTT_IMAGE is the program that makes
# and fills tables (block-cache/btt/examples/image.rs, built if not set).
# shellcheck disable=SC2016 # the guest expands it
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH="$PATH:/usr/sbin:/sbin"
"$here/setup.sh"
image=${FOREBAY_BTT_IMAGE:-}
if [ -z "$image" ]; then
    manifest="$here/../../Cargo.toml"
    cargo build --quiet --release --locked --package forebay-btt --example image \
        --manifest-path "$manifest"
    target=$(cargo metadata --format-version 1 --no-deps --manifest-path "$manifest" |
        jq -r .target_directory)
    image=$target/release/examples/image
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bytes=$((64 << 20))
"$here/image.sh" "$work/initramfs" ndctl
sum() { "$image" dump "$work/$1" | md5sum | cut -d' ' -f1; }
guest() { # IMAGE WHAT [OPTION]...: what the guest says that does this
    local nvdimm=$work/$1 what=$2
    shift 2
    {
        echo 'set -e'
        echo 'for module in nfit nd_pmem nd_btt; do modprobe $module; done'
        # The device appears after the scan of the namespace.
        echo 'appear() {
            for i in $(seq 100); do [ -b $1 ] && return 0; sleep 0.1; done
            echo "no $1"
            return 1
        }
        sum() {
            dd if=/dev/pmem0s bs=64k iflag=direct status=none 2>/dev/null | md5sum | cut -d" " -f1
        }'
        echo "$what"
    } >"$work/script"
    "$here/boot.sh" -i "$work/initramfs" -n "$nvdimm" "$@" -t 300 "$work/script"
}
failed=0
holds() { # WHAT FOUND EXPECTED
    if [ "$2" = "$3" ]; then
        echo "$1: holds"
    else
        echo "$1: FAILED: $2, and not $3"
        failed=1
    fi
}

for block in 4096 512; do
    name=ours-$block
    "$image" format "$work/$name" "$bytes" 1.1 "$block" >/dev/null
    "$image" fill "$work/$name" "$block"
    before=$(sum "$name")
    found=$(guest "$name" "appear /dev/pmem0s
echo \$(cat /sys/block/pmem0s/queue/logical_block_size) \$(sum)
dd if=/dev/urandom of=/dev/pmem0s bs=$block count=300 seek=100 oflag=direct status=none
sum")
    holds "the kernel opens a table of ours, blocks of $block, and finds what is in it" \
        "$(head -n 1 <<<"$found")" "$block $before"
    holds "what it writes there is read here" "$(sum "$name")" "$(tail -n 1 <<<"$found")"
    holds "and the table is whole" "$("$image" check "$work/$name" >/dev/null && echo whole)" whole
done

make='echo namespace0.0 >/sys/bus/nd/drivers/nd_pmem/unbind
echo 4096 >/sys/bus/nd/devices/btt0.0/sector_size
echo 6c1b3d5e-0d7f-4b44-8a55-3f3c2f5d9a10 >/sys/bus/nd/devices/btt0.0/uuid
echo namespace0.0 >/sys/bus/nd/devices/btt0.0/namespace
echo btt0.0 >/sys/bus/nd/drivers/nd_pmem/bind
appear /dev/pmem0s'
truncate -s "$bytes" "$work/theirs"
found=$(guest theirs "$make
dd if=/dev/urandom of=/dev/pmem0s bs=4k count=700 seek=30 oflag=direct status=none
dd if=/dev/urandom of=/dev/pmem0s bs=4k count=100 seek=500 oflag=direct status=none
sum")
holds "a table that the kernel made opens here with what is in it" "$(sum theirs)" "$found"
holds "and is whole" "$("$image" check "$work/theirs" >/dev/null && echo whole)" whole
"$image" fill "$work/theirs" 3
before=$(sum theirs)
holds "what is written to it here is read there" \
    "$(guest theirs 'appear /dev/pmem0s; sum')" "$before"

# Killed a moment after four writers have begun.
guest theirs 'appear /dev/pmem0s
for i in $(seq 4); do
    while :; do
        dd if=/dev/urandom of=/dev/pmem0s bs=4k count=50 seek=$((RANDOM % 900)) oflag=direct \
            status=none
    done &
done
echo WRITING
sleep 250' -k WRITING >/dev/null 2>&1 || true
holds "killed while the kernel writes, it opens here and is whole" \
    "$("$image" check "$work/theirs" >/dev/null && echo whole)" whole
holds "and was written to" "$([ "$(sum theirs)" != "$before" ] && echo written)" written
before=$(sum theirs)
holds "and there, with the same in it" "$(guest theirs 'appear /dev/pmem0s; sum')" "$before"

# The namespace is the first half of the NVDIMM. Free space follows, then the labels.
truncate -s $((2 * bytes)) "$work/labelled"
found=$(guest labelled 'mkdir -p /etc/ndctl.conf.d
for what in "disable-region" "init-labels -V 1.2" "enable-region"; do
    ndctl $what all >/dev/null 2>&1
done
ndctl create-namespace -m sector -l 4096 -s '"$bytes"' >/dev/null
appear /dev/pmem0s
dd if=/dev/urandom of=/dev/pmem0s bs=4k count=300 seek=100 oflag=direct status=none
sum' -l)
head -c "$bytes" "$work/labelled" >"$work/namespace"
holds "a table of version 2.0 that the kernel made opens here with what is in it" \
    "$(sum namespace)" "$found"
holds "and is whole" "$("$image" check "$work/namespace" | cut -d, -f1)" "version 2.0"
rm "$work/namespace"
"$image" format "$work/namespace" "$bytes" 2.0 4096 >/dev/null
"$image" fill "$work/namespace" 4
before=$(sum namespace)
dd if="$work/namespace" of="$work/labelled" bs=1M conv=notrunc status=none
holds "one of ours in its place opens there with what is in it" \
    "$(guest labelled 'appear /dev/pmem0s; sum' -l)" "$before"

echo "guest btt: $([ $failed = 0 ] && echo "all hold" || echo "FAILED"), ${SECONDS} s"
exit $failed
