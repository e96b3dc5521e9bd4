# Sourced by demo.sh: fio over NBD against the volume 'load', and the table of what it measured.
# shellcheck shell=bash disable=SC2154,SC2034

seconds_each=6

# fio_nbd SERVER ARGUMENT...
fio_nbd() {
    local server=$1
    shift
    fio --name=demo --ioengine=nbd --uri="$(uri "$server" load)" --thread --randrepeat=1 "$@"
}

# Each block written carries its checksum, and is read back. The last MiBs of the volume are for this.
verify_arguments=(--rw=randwrite --bs=4k --iodepth=16 --offset=960M --size=64M --verify=crc32c --verify_fatal=1
    --verify_state_save=0)
fio_verify() { fio_nbd "$1" "${verify_arguments[@]}" --do_verify=1; }
fio_verify_again() { fio_nbd "$1" "${verify_arguments[@]}" --verify_only=1; }

# The load that is cut off by kill -9, which fio calls an error.
fio_load_start() {
    { fio_nbd cached --rw=randwrite --bs=4k --iodepth=16 --size=512M --time_based --runtime=60 || true; } >/dev/null 2>&1 &
    load_pids+=($!)
}

# The writers end by themselves when the daemon is gone.
load_wait() {
    local pid
    for pid in "${load_pids[@]}"; do
        timeout 20 tail --pid="$pid" -f /dev/null || kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    load_pids=()
}

# name | fio arguments. Zipf over more than the cache holds: some requests miss, as they do in life.
loads=(
    "read  QD 1|--rw=randread --iodepth=1"
    "read  QD 16|--rw=randread --iodepth=16"
    "write QD 16|--rw=randwrite --iodepth=16"
)

load_measure() {
    local server load name arguments
    step "measuring: ${#loads[@]} loads of $seconds_each s, uncached and cached, after one to warm up"
    : >"$dir/results"
    measure cached "warm" --rw=randread --iodepth=32 >/dev/null
    load_counters warm
    for load in "${loads[@]}"; do
        IFS='|' read -r name arguments <<<"$load"
        for server in uncached cached; do
            # shellcheck disable=SC2086
            measure "$server" "$name" $arguments | tee -a "$dir/results" |
                while IFS='|' read -r _ _ iops p50 p99; do
                    step "$(printf '%-12s %-9s %8d IOPS, p50 %6d us, p99 %6d us' "$name" "$server" "$iops" "$p50" "$p99")"
                done
        done
    done
    load_counters end
}

# measure SERVER NAME ARGUMENT...: prints "server|name|IOPS|p50 us|p99 us", total latency.
measure() {
    local server=$1 name=$2
    shift 2
    fio_nbd "$server" --bs=4k --size=896M --random_distribution=zipf:1.2 --time_based --runtime="$seconds_each" \
        --lat_percentiles=1 --clat_percentiles=0 --output-format=json --output="$dir/fio.json" "$@" >"$dir/fio.log" 2>&1
    # fio says that it is connected before the JSON begins.
    sed -n '/^{/,$p' "$dir/fio.json" | jq -r --arg server "$server" --arg name "$name" '.jobs[0]
        | (if .read.iops > 0 then .read else .write end)
        | [$server, $name, .iops, .lat_ns.percentile["50.000000"] / 1000, .lat_ns.percentile["99.000000"] / 1000]
        | map(if type == "number" then floor else . end) | join("|")'
}

# load_counters WHEN: what the daemon counted from its start until now.
load_counters() { "$forebay" status --control "$dir/cached.control" --json >"$dir/status.$1.json"; }

# Hits of the measured loads; bytes written from the start of the daemon until the kill.
counters_table() {
    jq -rn --slurpfile before "$dir/status.warm.json" --slurpfile after "$dir/status.end.json" '
        def share($part; $whole): if $whole > 0 then "\($part * 1000 / $whole | round / 10) %" else "none" end;
        def times($part; $whole): if $whole > 0 then "\($part * 100 / $whole | round / 100)" else "none" end;
        def load($status): $status.volumes[] | select(.name == "load");
        def since($key): load($after[0])[$key] - load($before[0])[$key];
        def written($role): [$after[0].devices[] | select(.role == $role) | .write_bytes + .write_zeroes_bytes] | add // 0;
        ([$after[0].volumes[].operations[] | select(.kind == "write" or .kind == "write_zeroes") | .bytes] | add // 0) as $client
        | "hit ratio: \(share(since("read_hits"); since("read_hits") + since("read_misses"))) of reads, "
          + "\(share(since("write_hits"); since("write_hits") + since("write_misses"))) of writes",
          "bytes written for each byte that clients wrote (\($client / 1048576 | floor) MiB): "
          + "\(times(written("cache") + written("metadata"); $client)) to the cache, "
          + "\(times(written("backing"); $client)) to the backing devices, "
          + "\($after[0].cache.dirty_bytes / 1048576 | floor) MiB still dirty"'
}

load_table() {
    echo
    echo "4 KiB random over NBD (zipf 1.2), total latency; the backing device is *emulated*: $latency, $bandwidth"
    printf '%-14s %31s   %31s   %6s\n' "" "------- uncached (emulated) ---" "----------- cached ------------" ""
    printf '%-14s %9s %10s %10s   %9s %10s %10s   %6s\n' load IOPS "p50 us" "p99 us" IOPS "p50 us" "p99 us" ratio
    awk -F '|' '
        $1 == "uncached" { iops = $3; p50 = $4; p99 = $5 }
        $1 == "cached" { printf "%-14s %9d %10d %10d   %9d %10d %10d   %5.1fx\n", $2, iops, p50, p99, $3, $4, $5, $3 / (iops ? iops : 1) }
    ' "$dir/results"
    counters_table
    printf 'restart after kill -9: %d ms until the first read was answered\n' "$restart_ms"
}
