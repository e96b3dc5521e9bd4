#!/usr/bin/env bash
# ceph-one-node.sh FOLDER: a Ceph cluster of one node on loopback (a monitor, a manager, one OSD whose store is memory) with an
# image `rbd/IMAGE` of 1 GiB, all of its files in FOLDER. Prints "ready" and the OSD's process after some seconds, and
# stays; its daemons go with it. For comparisons: it keeps no data, and clients have no cache. Needs Debian's ceph-mon, ceph-mgr, ceph-osd and ceph-common.
# With CEPH_STORE=bluestore the store is a file, and a killed OSD is restarted, unless FOLDER/osd.hold is
# there. FOLDER/osd.pid has its process.
set -euo pipefail
folder=$(realpath "$1")
for program in monmaptool ceph-mon ceph-mgr ceph-osd ceph rbd setpriv; do
    command -v "$program" >/dev/null || {
        echo "ceph-one-node: $program is missing: apt-get install ceph-mon ceph-mgr ceph-osd ceph-common" >&2
        exit 1
    }
done
mkdir -p "$folder"/{mon,mgr,osd}
id=$(cat /proc/sys/kernel/random/uuid)
conf=$folder/ceph.conf
# Ports of its own, so that it meets no other cluster of this machine.
messenger=127.0.0.1:${CEPH_PORT:-43300}
cat >"$conf" <<C
[global]
fsid = $id
mon host = [v2:$messenger]
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
mon warn on pool no redundancy = false
public addr = 127.0.0.1
cluster addr = 127.0.0.1
run dir = $folder
log file = $folder/\$name.log
admin socket = $folder/\$name.asok
[client]
rbd cache = false
admin socket =
[mon.a]
mon data = $folder/mon
[mgr.x]
mgr data = $folder/mgr
[osd.0]
osd data = $folder/osd
osd objectstore = ${CEPH_STORE:-memstore}
memstore device bytes = 2147483648
bluestore block size = 4294967296
osd memory target = 939524096
C
export CEPH_CONF=$conf
daemons=()
# shellcheck disable=SC2317 # the trap calls it
finish() {
    for daemon in "${daemons[@]}"; do kill "$daemon" 2>/dev/null || true; done
    wait 2>/dev/null || true
}
trap finish EXIT
trap 'exit 130' INT TERM
run() {
    setpriv --pdeathsig KILL -- "$@" -f </dev/null >>"$folder/said" 2>&1 &
    daemons+=($!)
}
keep_osd() {
    while true; do
        while [[ -e $folder/osd.hold ]]; do sleep 0.1; done
        setpriv --pdeathsig KILL -- ceph-osd -c "$conf" -i 0 -f </dev/null >>"$folder/said" 2>&1 &
        echo $! >"$folder/osd.pid"
        wait $! || true
    done
}
ask() { timeout 60 "$@" -c "$conf" </dev/null >>"$folder/said" 2>&1; }

monmaptool --create --fsid "$id" --addv a "[v2:$messenger]" "$folder/monmap" >"$folder/said"
ceph-mon -c "$conf" --mkfs -i a --monmap "$folder/monmap" >>"$folder/said" 2>&1
run ceph-mon -c "$conf" -i a
run ceph-mgr -c "$conf" -i x
osd=$(cat /proc/sys/kernel/random/uuid)
ask ceph osd new "$osd"
ceph-osd -c "$conf" -i 0 --mkfs --osd-uuid "$osd" >>"$folder/said" 2>&1
if [[ ${CEPH_STORE:-memstore} == memstore ]]; then
    run ceph-osd -c "$conf" -i 0
else
    keep_osd 2>/dev/null &
    daemons+=($!)
fi
ask ceph osd pool create rbd 8
ask rbd pool init rbd
ask rbd create --size 1G "${CEPH_IMAGE:-bench}"
echo "ready ${daemons[-1]}"
wait -n
echo "ceph-one-node: a daemon has ended:" >&2
tail -n 5 "$folder/said" >&2
exit 1
