#!/usr/bin/env bash
# The main job, from nothing to a checked result, on files of its own: see "See it" in README.md.
# Under three minutes after the build. Cleans up behind itself, also when it fails or is interrupted.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/demo/daemon.sh
. scripts/demo/daemon.sh
# shellcheck source=scripts/demo/tree.sh
. scripts/demo/tree.sh
# shellcheck source=scripts/demo/load.sh
. scripts/demo/load.sh

for tool in fio jq nbdcopy nbdinfo; do
    command -v "$tool" >/dev/null || {
        echo "demo: $tool is missing: run scripts/setup.sh as root, or install what it names" >&2
        exit 1
    }
done

echo "building the release binary"
cargo build --release --locked --quiet --package forebay
forebay=$(cargo metadata --format-version=1 --no-deps | jq -r .target_directory)/release/forebay

# What is printed from here on goes here, also from where output is redirected.
exec 3>&1
SECONDS=0
checks=0
failures=()

step() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }
note() { printf '        %s\n' "$*"; }

# check WHAT COMMAND...: runs a verification and keeps the score.
check() {
    local what=$1
    shift
    checks=$((checks + 1))
    if "$@" >"$dir/check.log" 2>&1 </dev/null; then
        step "holds: $what"
    else
        failures+=("$what")
        step "FAILED: $what"
        tail -n 20 "$dir/check.log" | sed 's/^/        /'
    fi
}

dir=$(mktemp -d "${TMPDIR:-/tmp}/forebay-demo.XXXXXX")
# A client that is refused gives up by itself; what is listed here is ended.
load_pids=()
cleanup() {
    local status=$?
    trap - EXIT INT TERM ERR
    set +e
    exec >&3 2>&1
    for pid in "${load_pids[@]}"; do kill "$pid" && wait "$pid"; done 2>/dev/null
    tree_detach
    daemon_stop cached
    daemon_stop uncached
    fuse_gone
    if [ "$status" -ne 0 ] && [ "$status" -ne 130 ]; then
        for log in "$dir"/*.log; do
            [ -s "$log" ] && { echo "--- the end of $(basename "$log")"; tail -n 15 "$log"; }
        done
    fi
    rm -rf --one-file-system "$dir"
    exit "$status"
}
trap cleanup EXIT
set -E
trap 'echo "demo: failed at ${BASH_SOURCE[0]##*/}:$LINENO: $BASH_COMMAND" >&3' ERR
trap 'echo "demo: interrupted, cleaning up" >&3; exit 130' INT TERM

free_mib=$(df --output=avail -m "$dir" | tail -n 1)
if [ "$free_mib" -lt 3072 ]; then
    echo "demo: $dir has $free_mib MiB free and 3072 are needed: set TMPDIR to a folder with more" >&2
    exit 1
fi

demo_configure
step "a cache of $cache_mib MiB in front of $files_mib + $load_mib MiB of *emulated* remote disk:"
note "each request takes $latency more, $bandwidth in all (declared by the emulate layer, not measured)"
"$forebay" format --cache "$dir/cache" >"$dir/format.log"
daemon_start cached
daemon_start uncached
note "exports: $(uri cached files) and .../load; files under ${dir}; log ${dir}/cached.log"
note "the volume 'files' has $(nbdinfo --size "$(uri cached files)") bytes, says nbdinfo"

tree_choose
tree_copy_in
check "every one of $tree_files files has its checksum" tree_verify

check "fio writes and verifies crc32c, uncached" fio_verify uncached
check "fio writes and verifies crc32c, cached" fio_verify cached
load_measure

step "writing on, then kill -9 in the middle of it"
tree_load_start
fio_load_start
sleep 3
daemon_kill cached
load_wait
tree_lost
daemon_start cached
restart_ms=$started_ms
step "restarted: the first read was answered after $restart_ms ms"
tree_recover
check "every file${block_device:+, also what was synced just before the kill,} has its checksum" tree_verify
check "what fio wrote before the kill verifies, cached" fio_verify_again cached

tree_detach
step "stopping cleanly"
daemon_stop cached
daemon_stop uncached

load_table
if [ ${#failures[@]} -eq 0 ]; then
    printf '\nEvery checksum held: %d checks, %d files, %d s.\n' "$checks" "$tree_files" "$SECONDS"
else
    printf '\nNOT every checksum held: %d of %d checks failed: %s\n' "${#failures[@]}" "$checks" "${failures[*]}"
    exit 1
fi
