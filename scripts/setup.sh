#!/usr/bin/env bash
# Installs what the demo and the tests need and this machine lacks. May be run again at any time.
# As root it installs with apt-get and says what; otherwise it prints the command and what is skipped.
set -euo pipefail

# package | how to see that it is there | what needs it
needs=(
    "fio|command -v fio|demo: every load and verification; tests: fio over NBD"
    "nbdkit|command -v nbdkit|benchmarks: the peer servers"
    "libnbd-bin|command -v nbdinfo && command -v nbdcopy|demo: sizes over NBD; tests: nbdinfo, nbdcopy"
    "python3-libnbd|/usr/bin/python3 -c 'import nbd'|tests: libnbd from Python"
    "qemu-utils|command -v qemu-img && command -v qemu-io|tests: qemu-img, qemu-io"
    "e2fsprogs|command -v mkfs.ext4 && command -v e2fsck|demo and tests: ext4 on the loop device"
    "xfsprogs|command -v mkfs.xfs|tests: XFS on the loop device"
    "util-linux|command -v losetup && command -v mount|demo and tests: the loop device"
    "jq|command -v jq|demo: reading results"
    "valgrind|command -v valgrind|tests: instructions of a hit"
    "zstd|command -v zstd|tests and benchmarks: real traces, where these are"
    "lmdb-utils|command -v mdb_load|tests: LMDB on shared mounts"
    "rocksdb-tools|command -v db_bench|tests: RocksDB on shared mounts, RocksDB killed over transit; study applications"
    "libsqlite3-0|ldconfig -p | grep -q libsqlite3.so.0|tests: SQLite killed over transit; study applications"
    "python3-venv|python3 -c 'import venv, ensurepip'|tests: libCacheSim, the policies' oracle"
    "procps|command -v ps|demo: looking after its own processes"
)

# Where Debian keeps mkfs and losetup, also for an ordinary user.
PATH="$PATH:/usr/sbin:/sbin"

if ! command -v cargo >/dev/null; then
    echo "setup: cargo is not on the PATH; install Rust 1.95 or newer (https://rustup.rs), then run this again" >&2
    exit 1
fi

missing=()
skipped=()
for need in "${needs[@]}"; do
    IFS='|' read -r package probe purpose <<<"$need"
    if ! bash -c "$probe" >/dev/null 2>&1; then
        missing+=("$package")
        skipped+=("  without $package: $purpose")
    fi
done
if ! command -v cc >/dev/null; then
    missing+=(build-essential)
    skipped+=("  without build-essential: nothing can be linked")
fi

if [ ${#missing[@]} -eq 0 ]; then
    echo "setup: all packages are here"
    exit 0
fi

install="apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "setup: these packages are missing and this user cannot install them: ${missing[*]}"
    echo "setup: on Debian run: sudo $install"
    echo "setup: until then the following is skipped:"
    printf '%s\n' "${skipped[@]}"
    exit 0
fi

echo "setup: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt-get update && $install; } >"$log" 2>&1 </dev/null; then
    cat "$log"
    echo "setup: apt-get failed; put right what it says above, then run this again" >&2
    exit 1
fi
echo "setup: installed ${missing[*]}"
