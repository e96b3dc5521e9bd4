# shellcheck shell=bash
# The guest's kernel: Debian's newest that is installed, or that is below FOREBAY_GUEST_ROOT.
# Sourced.
guest_root=${FOREBAY_GUEST_ROOT:-}
kernel=$(for image in "$guest_root"/boot/vmlinuz-*-amd64; do echo "${image##*/vmlinuz-}"; done |
    sort -V | tail -n 1)
if [ ! -d "$guest_root/lib/modules/$kernel" ]; then
    echo "guest: no Debian kernel is installed: run tests/guest/setup.sh" >&2
    exit 1
fi
