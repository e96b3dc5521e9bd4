#!/usr/bin/env bash
# Installs the missing packages of the guest tests (the list: packages), and prints their names. May
# be repeated. --check installs nothing, and fails if a package is missing.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"
list="$(dirname "$0")/packages"

missing=()
while IFS='|' read -r package probe; do
    bash -c "$probe" >/dev/null 2>&1 || missing+=("${package// /}")
done < <(grep -v '^#' "$list")
if [ ${#missing[@]} -eq 0 ]; then
    echo "guest setup: all packages are here"
    exit 0
fi
if [ "${1:-}" = --check ]; then
    echo "guest setup: these packages are missing: ${missing[*]}"
    exit 1
fi
install="apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "guest setup: these packages are missing and this user cannot install them:" \
        "${missing[*]}" >&2
    echo "guest setup: on Debian run: sudo $install" >&2
    exit 1
fi
echo "guest setup: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update && $install; } >"$log" 2>&1 </dev/null; then
    cat "$log" >&2
    echo "guest setup: apt-get failed; put right what it says above, then run this again" >&2
    exit 1
fi
echo "guest setup: installed ${missing[*]} in ${SECONDS} s"
