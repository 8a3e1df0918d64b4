#!/usr/bin/env bash
# Unpacks the programs of lab hosts and their network into a folder of the user's cache, which becomes a layer of each host's root: Debian's
# packages marked `lab` in requirements/apt.txt, and those dependencies that this machine lacks. Installs and starts nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${XDG_CACHE_HOME:-$HOME/.cache}/benchfleet/lab
mapfile -t packages < <(awk '$3 == "lab" {print $2}' requirements/apt.txt)

give_up() {
  echo "lab: $1" >&2
  [ -z "${CI:-}" ] && exit 0 || exit 1 # outside CI the tests are skipped, and their reason says what is missing
}

[ "$(id -u)" = 0 ] || give_up "lab hosts need root, to create namespaces, mounts and bridges"
mkdir -p "$(dirname "$folder")"
exec 9>"$folder.lock" && flock 9
[ "$(cat "$folder/packages" 2>/dev/null)" = "${packages[*]}" ] && exit 0
command -v apt-get >/dev/null || give_up "this machine has no apt: install openssh, iproute2, nftables and systemd-nspawn with its package manager"

work=$(mktemp -d "$folder.XXXXXX")
downloads=$(mktemp -d)
trap 'rm -rf "$work" "$downloads"' EXIT
mkdir -p "$work/layer" && chmod 755 "$work/layer"
chown _apt "$downloads" 2>/dev/null || true # apt downloads as the user _apt
for name in bin sbin lib lib64; do # as on a machine with one /usr: packages still name /lib and /sbin
  mkdir -p "$work/layer/usr/$name" && ln -s "usr/$name" "$work/layer/$name"
done
if [ -z "$(apt-cache policy "${packages[0]}" 2>/dev/null)" ]; then apt-get update -qq; fi
lacking=$(apt-get install --simulate --no-install-recommends "${packages[@]}" | awk '$1 == "Inst" {print $2}') || give_up "apt-get cannot find ${packages[*]}"
if [ -n "$lacking" ]; then
  # shellcheck disable=SC2086 # a list of names
  (cd "$downloads" && apt-get download -qq $lacking) || give_up "the packages of lab hosts could not be downloaded: $lacking"
  for package in "$downloads"/*.deb; do dpkg-deb --fsys-tarfile "$package" | tar -x -C "$work/layer" --keep-directory-symlink; done
fi
rm -rf "$work"/layer/usr/share/{doc,man,info,locale} "$work"/layer/usr/lib/udev/hwdb.d # each lab keeps its own copy in memory
echo "${packages[*]}" >"$work/layer/packages"
rm -rf "$folder" && mv "$work/layer" "$folder"
echo "lab: unpacked into the cache:" $lacking
