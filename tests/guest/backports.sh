#!/usr/bin/env bash
# backports.sh FOLDER: puts Debian's newest kernel for virtual machines, from the backports of this
# release, into FOLDER with its modules. Installs nothing (34 MB, a few seconds). Does nothing if
# FOLDER has one. FOREBAY_GUEST_ROOT=FOLDER boots it.
set -euo pipefail
PATH="$PATH:/usr/sbin:/sbin"
folder=$1
if [ -e "$folder/whole" ]; then
    exit 0
fi
# shellcheck source=/dev/null
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
# shellcheck disable=SC2016 # apt-get's own variables
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' \
    "Codename: $release" | head -n 1)
if [ -z "$mirror" ]; then
    echo "guest: this machine's package sources name no mirror of Debian $release" >&2
    echo "    help: run apt-get update, or name one" >&2
    exit 1
fi
rm -rf "$folder"
mkdir -p "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] $mirror $release-backports main" >"$folder/apt/sources.list"
apt=(-q -o "Dir::State::lists=$folder/apt/lists" -o "Dir::Cache=$folder/apt/cache"
    -o "Dir::Etc::sourcelist=$folder/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o APT::Sandbox::User=root)
log="$folder/apt/log"
get() {
    apt-get "${apt[@]}" update &&
        package=$(apt-cache "${apt[@]}" depends linux-image-cloud-amd64/"$release-backports" |
            sed -n 's/^ *Depends: //p' | head -n 1) &&
        (cd "$folder/apt" && apt-get "${apt[@]}" download "$package") &&
        dpkg-deb -x "$folder"/apt/linux-image-*.deb "$folder"
}
if ! get >"$log" 2>&1; then
    cat "$log" >&2
    echo "guest: the kernel of $release-backports could not be had: see above" >&2
    exit 1
fi
# If /lib is a link, packages may use usr/lib.
[ -d "$folder/lib/modules" ] || ln -s usr/lib "$folder/lib"
for modules in "$folder"/lib/modules/*; do depmod -b "$folder" "${modules##*/}"; done
rm -rf "$folder/apt"
touch "$folder/whole"
