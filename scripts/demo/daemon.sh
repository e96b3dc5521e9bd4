# Sourced by demo.sh: the two daemons, one with a cache and one without, and their configuration.
# shellcheck shell=bash disable=SC2154,SC2034

cache_mib=384
files_mib=1024
load_mib=1024
latency=1ms
bandwidth=100MB/s

declare -A daemon_pid=()

demo_configure() {
    truncate -s "${cache_mib}M" "$dir/cache"
    truncate -s "${files_mib}M" "$dir/files.img"
    truncate -s "${load_mib}M" "$dir/load.img" "$dir/uncached.img"
    mkdir "$dir/mnt" "$dir/ext4"

    fuse=""
    if [ -e /dev/fuse ] && [ "$(id -u)" -eq 0 ]; then
        fuse=$'[[export]]\nvolume = "files"\nfuse = "mnt"\n'
    else
        note "NO FUSE EXPORT: it needs root and /dev/fuse"
    fi

    {
        cat <<TOML
[[device]]
name = "ssd"
kind = "file"
path = "cache"

[cache]
data = "ssd"
durability = "flush"
journal = "journal"
$(remote files files.img)
$(remote load load.img)
$(volume files cached 'mode = "wb"')
$(volume load cached 'mode = "wb"')
$fuse
$(server cached)
TOML
    } >"$dir/cached.toml"
    {
        remote load uncached.img
        volume load uncached
        server uncached
    } >"$dir/uncached.toml"
}

# remote NAME FILE: a backing device as a remote disk would be.
remote() {
    cat <<TOML

[[device]]
name = "$1-file"
kind = "file"
path = "$2"

[[device]]
name = "$1-remote"
kind = "emulate"
on = "$1-file"
latency = "$latency"
bandwidth = "$bandwidth"
TOML
}

# volume NAME SERVER [LINE]: a volume and its NBD export.
volume() {
    cat <<TOML

[[volume]]
name = "$1"
backing = "$1-remote"
${3:-}

[[export]]
volume = "$1"
nbd = "unix:$2.nbd"
TOML
}

server() {
    cat <<TOML

[server]
control = "$1.control"
metrics = "127.0.0.1:0"
state = "$1.state"
TOML
}

# uri SERVER VOLUME
uri() { echo "nbd+unix:///$2?socket=$dir/$1.nbd"; }

# daemon_start SERVER: starts it and waits until a read is answered; $started_ms says how long it took.
daemon_start() {
    local begin now
    begin=$(date +%s%N)
    "$forebay" serve "$dir/$1.toml" >>"$dir/$1.log" 2>&1 </dev/null &
    daemon_pid[$1]=$!
    until first_read "$(uri "$1" load)"; do
        now=$(date +%s%N)
        if ! kill -0 "${daemon_pid[$1]}" 2>/dev/null; then
            echo "demo: the daemon '$1' ended at its start" >&2
            exit 1
        elif [ $((now - begin)) -gt 60000000000 ]; then
            echo "demo: the daemon '$1' answered nothing within 60 s" >&2
            exit 1
        fi
        sleep 0.01
    done
    now=$(date +%s%N)
    started_ms=$(((now - begin) / 1000000))
}

first_read() {
    local read_bytes
    read_bytes=$({ timeout 10 nbdcopy --connections=1 --requests=1 "$1" - 2>/dev/null || true; } | head -c 4096 | wc -c)
    [ "$read_bytes" -eq 4096 ]
}

# daemon_kill SERVER: kill -9.
daemon_kill() {
    kill -KILL "${daemon_pid[$1]}"
    wait "${daemon_pid[$1]}" 2>/dev/null || true
    unset "daemon_pid[$1]"
}

# daemon_stop SERVER: SIGTERM, and kill -9 when that takes more than 30 s.
daemon_stop() {
    local pid=${daemon_pid[$1]:-}
    [ -n "$pid" ] || return 0
    kill -TERM "$pid" 2>/dev/null || true
    for _ in $(seq 300); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    if kill -KILL "$pid" 2>/dev/null; then
        echo "demo: the daemon '$1' did not stop within 30 s and was killed" >&2
    fi
    wait "$pid" 2>/dev/null || true
    unset "daemon_pid[$1]"
}

# A daemon that was killed leaves its FUSE mount behind, dead.
fuse_gone() {
    if grep -q " $dir/mnt fuse" /proc/self/mounts; then
        umount -l "$dir/mnt"
    fi
}
