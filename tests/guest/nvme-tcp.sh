#!/usr/bin/env bash
# The kernel's NVMe/TCP initiator and nvme-cli (in the guest) against `forebay serve` (on this
# machine):
#
# 1. Discovery, connect, the view of the kernel and nvme-cli, log pages, flush, deallocate,
#    write-zeroes, compare.
# 2. 256 O_DSYNC writes of 4 KiB at queue depth 1 are covered by at least 256 flushes or FUA writes
#    of the cache device, by forebay's count. The same writes without O_DSYNC are not covered, which
#    shows that the check can fail.
# 3. ext4 and XFS, fsck, fio's verify, without digests and with both.
# 4. A host that is not allowed is refused. 50 cycles of connect and disconnect (`--quick`: 5).
# 5. A host with a secret authenticates itself, the controller authenticates itself to the host, and
#    both repeat it under I/O. The host is refused without the secret, with a wrong one, or towards
#    a wrong controller. This part is skipped, with a message, if the guest's kernel has no
#    NVME_HOST_AUTH. Debian 12's kernel lacks it. `--backports` fetches and boots a kernel that has
#    it, and does not install it.
# 6. The daemon is killed (-9) and restarted under fio's verify, which continues.
#
# The kernel logs no error. Prints a line for each check. Exit code 0 if all hold. FOREBAY_BIN is
# the program (built if not set).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PATH="$PATH:/usr/sbin:/sbin"
"$here/setup.sh"
manifest="$here/../../Cargo.toml"
cycles=50
for argument in "$@"; do
    case $argument in
    --quick) cycles=5 ;;
    --backports)
        target=$(cargo metadata --format-version 1 --no-deps --manifest-path "$manifest" |
            jq -r .target_directory)
        export FOREBAY_GUEST_ROOT=$target/guest
        modules='virtio_pci virtio_blk virtio_net crc32c_generic nvme-tcp ext4 xfs'
        export FOREBAY_GUEST_MODULES=$modules
        "$here/backports.sh" "$FOREBAY_GUEST_ROOT"
        ;;
    *) exit 2 ;;
    esac
done
program=${FOREBAY_BIN:-}
if [ -z "$program" ]; then
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
truncate -s 64M "$work/other"
host=nqn.2014-08.org.nvmexpress:uuid:5cb9b3d6-6f43-4d4c-a5a0-5a3b1b2d7c01
id=5cb9b3d6-6f43-4d4c-a5a0-5a3b1b2d7c01
nqn=nqn.2026-11.io.forebay:guest
# shellcheck source=tests/guest/kernel.sh
. "$here/kernel.sh"
authenticates=false
! grep -q '^CONFIG_NVME_HOST_AUTH=y' "$guest_root/boot/config-$kernel" || authenticates=true
secret=$("$program" secret generate --hash sha256)
controller_secret=$("$program" secret generate --hash sha512)
wrong_secret=$("$program" secret generate --hash none)
(umask 077 && echo "$host $secret $controller_secret" >"$work/secrets")
configure() { # PORT
    cat >"$work/forebay.toml" <<TOML
[[device]]
name = "cache"
kind = "file"
path = "cache"
[[device]]
name = "backing"
kind = "file"
path = "backing"
[[device]]
name = "other"
kind = "file"
path = "other"
[cache]
data = "cache"
journal = "journal"
commit_interval = "60s"
[[volume]]
name = "v"
backing = "backing"
mode = "wb"
[[volume]]
name = "sealed"
backing = "other"
[[export]]
volume = "v"
nvme-tcp = "127.0.0.1:$1"
nqn = "$nqn"
allow_hosts = ["$host"]
[[export]]
volume = "sealed"
nvme-tcp = "127.0.0.1:$1"
nqn = "$nqn-sealed"
allow_hosts = ["nqn.2026-11.io.forebay:somebody-else"]
[[export]]
volume = "sealed"
nvme-tcp = "127.0.0.1:$1"
nqn = "$nqn-secret"
secrets = "secrets"
[server]
reactors = 2
control = "control.sock"
metrics = "127.0.0.1:0"
state = "state"
TOML
}
status() { "$program" status --json --control "$work/control.sock"; }
port=''
serve() {
    (cd "$work" && exec "$program" serve forebay.toml) >>"$work/log" 2>&1 </dev/null &
    daemon=$!
    for _ in $(seq 200); do
        port=$(status 2>/dev/null | jq -r '.listening[]' 2>/dev/null |
            sed -n 's/^NVMe.TCP: .*127\.0\.0\.1:\([0-9]*\)\/.*/\1/p' | head -n 1 || true)
        [ -z "$port" ] || return 0
        sleep 0.05
    done
    cat "$work/log" >&2
    echo "guest nvme-tcp: forebay does not serve" >&2
    return 1
}
"$program" format --cache "$work/cache" >"$work/log"
configure 0
serve
# The next start takes the same port.
configure "$port"
durable() { status | jq '[.devices[] | select(.role == "cache") | .flushes + .fua_writes] | add'; }

cat >"$work/script" <<G
set -e
for module in nvme-tcp ext4 xfs; do modprobe \$module; done
echo "INFO itself as Linux \$(uname -r)"
at="-t tcp -a 10.0.2.2 -s $port"
who="-q $host -I $id"
fails() { if "\$@" >/dev/null 2>&1; then echo "this should have failed: \$*"; return 1; fi; }
says() { # PATTERN COMMAND...
    pattern=\$1
    shift
    "\$@" >/tmp/said 2>&1 && grep -q "\$pattern" /tmp/said && return 0
    echo "\$* does not say \$pattern:"
    cat /tmp/said
    return 1
}
connect_to() { # NQN [OPTION]...
    nvme connect \$at \$who -c 1 -k 5 -n "\$@" >/dev/null
    for _ in \$(seq 100); do
        d=\$(ls /dev/nvme*n1 2>/dev/null) && return 0
        sleep 0.1
    done
    echo "no namespace has appeared"
    return 1
}
connect() { connect_to $nqn "\$@"; }
nvme discover \$at \$who >/tmp/discover
grep -q 'subnqn: *$nqn\$' /tmp/discover
grep -q 'trtype: *tcp' /tmp/discover
fails grep sealed /tmp/discover
echo "DONE discovery tells of what this host may use, and of nothing else"
connect
queue=/sys/block/nvme0n1/queue
controller=/sys/class/nvme/nvme0
echo "INFO write_cache=\$(cat \$queue/write_cache), fua=\$(cat \$queue/fua)," \\
    "logical block \$(cat \$queue/logical_block_size), state \$(cat \$controller/state)," \\
    "queues \$(cat \$controller/queue_count)"
says '^mn[[:space:]]*: Forebay' nvme id-ctrl /dev/nvme0
says '^vwc[[:space:]]*: 0x7' nvme id-ctrl /dev/nvme0
says '^nsze' nvme id-ns \$d
says uuid nvme ns-descs \$d
says 0x1 nvme list-ns /dev/nvme0
says '^available_spare[[:space:]]*: 100%' nvme smart-log \$d
says error_count nvme error-log /dev/nvme0
says ptimized nvme ana-log /dev/nvme0
says 'Current value' nvme get-feature /dev/nvme0 -f 7
says 'value:0*x*0*1' nvme get-feature /dev/nvme0 -f 6
echo "DONE nvme-cli reads what there is to read"
dd if=/dev/urandom of=/tmp/one bs=4k count=1 2>/dev/null
nvme write \$d -s 0 -c 7 -z 4096 -d /tmp/one >/dev/null
nvme flush \$d -n 1 >/dev/null
nvme read \$d -s 0 -c 7 -z 4096 -d /tmp/back >/dev/null 2>&1
cmp /tmp/one /tmp/back
nvme compare \$d -s 0 -c 7 -z 4096 -d /tmp/one >/dev/null
nvme verify \$d -s 0 -c 7 >/dev/null
nvme write-zeroes \$d -s 0 -c 7 >/dev/null
[ "\$(dd if=\$d bs=4k count=1 iflag=direct 2>/dev/null | tr -d '\\0' | wc -c)" = 0 ]
fails nvme compare \$d -s 0 -c 7 -z 4096 -d /tmp/one
nvme dsm \$d -n 1 -d -s 0 -b 8 >/dev/null
fails nvme read \$d -s 99999999 -c 7 -z 4096 -d /tmp/back
echo "DONE write, flush, read, compare, verify, write-zeroes, dsm by nvme-cli"
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
files() { # NAME
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
    echo "DONE ext4 \$1"
    fio --name=v --filename=\$d --direct=1 --ioengine=libaio --iodepth=16 --rw=randrw --bs=4k \\
        --size=64M --io_size=8M --verify=crc32c --verify_fatal=1 >/tmp/fio ||
        { cat /tmp/fio; exit 1; }
    fio --name=v --filename=\$d --direct=1 --ioengine=libaio --iodepth=8 --rw=randrw \\
        --bsrange=512-1m --size=64M --io_size=32M --verify=crc32c --verify_fatal=1 >/tmp/fio ||
        { cat /tmp/fio; exit 1; }
    echo "DONE fio verify \$1"
}
files "without digests"
blkdiscard -f \$d
[ "\$(dd if=\$d bs=1M count=64 2>/dev/null | tr -d '\\0' | wc -c)" = 0 ]
echo "DONE discard"
nvme disconnect -n $nqn >/dev/null
connect -g -G --disable-sqflow
files "with both digests"
mkfs.xfs -q -f \$d
mount \$d /mnt
dd if=/dev/urandom of=/mnt/a bs=1M count=20 2>/dev/null
sync
sum=\$(md5sum </mnt/a)
umount /mnt
xfs_repair -n \$d >/dev/null 2>&1
mount \$d /mnt
echo 3 >/proc/sys/vm/drop_caches
[ "\$(md5sum </mnt/a)" = "\$sum" ]
umount /mnt
echo "DONE xfs with both digests"
nvme disconnect -n $nqn >/dev/null
fails nvme connect \$at \$who -n $nqn-sealed
echo "DONE a host that is not allowed is refused"
if $authenticates; then
    own="--dhchap-secret=$secret"
    fails nvme connect \$at \$who -n $nqn-secret
    fails nvme connect \$at \$who -n $nqn-secret --dhchap-secret=$wrong_secret
    fails nvme connect \$at \$who -n $nqn-secret \$own --dhchap-ctrl-secret=$wrong_secret
    for both in "" "--dhchap-ctrl-secret=$controller_secret"; do
        connect_to $nqn-secret \$own \$both
        fio --name=v --filename=\$d --direct=1 --ioengine=libaio --iodepth=8 --rw=randrw --bs=4k \\
            --size=16M --io_size=8M --verify=crc32c --verify_fatal=1 >/tmp/fio 2>&1 &
        load=\$!
        # A write of the secret, even of the same one, makes the kernel repeat the authentication on
        # all queues.
        for _ in 1 2 3; do
            sleep 1
            for file in /sys/class/nvme/nvme*/dhchap_secret; do echo "$secret" >\$file; done
        done
        wait \$load || { cat /tmp/fio; exit 1; }
        grep live /sys/class/nvme/nvme*/state >/dev/null
        nvme disconnect -n $nqn-secret >/dev/null
    done
    fails sh -c 'dmesg | grep "re-authentication failed"'
    echo "DONE a host authenticates itself by DH-HMAC-CHAP, the controller to it, and again" \\
        "under I/O; others are refused"
else
    echo "SKIPPED authentication: this kernel has no NVME_HOST_AUTH" \\
        "(that of Debian 12's backports has)"
fi
for _ in \$(seq $cycles); do
    connect
    dd if=\$d bs=4k count=1 iflag=direct status=none >/dev/null
    nvme disconnect -n $nqn >/dev/null
done
echo "DONE $cycles times connect and disconnect"
fails sh -c 'dmesg | grep "I/O error"'
echo "DONE the kernel has seen no error"
connect
fio --name=k --filename=\$d --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=4k \\
    --size=64M --io_size=24M --rate_iops=400 --verify=crc32c --verify_fatal=1 --do_verify=1 \\
    >/tmp/fio 2>&1 &
load=\$!
sleep 4
echo "KILL"
wait \$load || { cat /tmp/fio; exit 1; }
echo "DONE fio verify while the daemon was killed and started again"
nvme disconnect -n $nqn >/dev/null
G

"$here/image.sh" "$work/image" nvme
failed=0 ended=''
: >"$work/said"
declare -A before
while read -r word name rest; do
    case $word in
    INFO) echo "the kernel sees $name ${rest}" ;;
    DONE) echo "$name ${rest}: holds" ;;
    SKIPPED) echo "SKIPPED: $name ${rest}" ;;
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
    KILL)
        kill -9 "$daemon"
        wait "$daemon" 2>/dev/null || true
        sleep 2
        serve
        ;;
    GUEST) ended=$name ;;
    *) echo "guest: $word $name $rest" | tee -a "$work/said" ;;
    esac
done < <("$here/boot.sh" -i "$work/image" -t 900 "$work/script" &&
    echo "GUEST 0" || echo "GUEST $?")
if grep -q "Property Set error" "$work/said"; then
    echo "the kernel could not shut a controller down: FAILED"
    failed=1
fi
if [ "$ended" != 0 ]; then
    echo "guest nvme-tcp: the guest ended with ${ended:-nothing}"
    tail -n 20 "$work/log"
    failed=1
fi
echo "guest nvme-tcp: $([ $failed = 0 ] && echo "all hold" || echo "FAILED"), ${SECONDS} s"
exit "$failed"
