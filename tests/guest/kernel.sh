# shellcheck shell=bash
# The guest's kernel: the newest of Debian's that is installed. Sourced.
kernel=$(for image in /boot/vmlinuz-*-amd64; do echo "${image#/boot/vmlinuz-}"; done | sort -V | tail -n 1)
if [ ! -d "/lib/modules/$kernel" ]; then
    echo "guest: no Debian kernel is installed: run tests/guest/setup.sh" >&2
    exit 1
fi
