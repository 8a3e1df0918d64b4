#!/usr/bin/env bash
# Owns the programs that the tests call beside Python: gets what requirements/apt.txt lists and this machine lacks.
# Unpacks a package into the user's cache instead of installing it, so that no service is started and nothing is replaced.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${XDG_CACHE_HOME:-$HOME/.cache}/benchfleet/programs
missing=()

lacking() {
  ! command -v "$1" >/dev/null && [ ! -x "$folder/usr/bin/$1" ]
}

fetch() {
  local download
  download=$(mktemp -d)
  if [ "$(id -u)" = 0 ]; then chown _apt "$download" 2>/dev/null || true; fi # apt downloads as a user of its own
  if [ -z "$(apt-cache policy "$1" 2>/dev/null)" ] && [ "$(id -u)" = 0 ]; then apt-get update -qq; fi
  (cd "$download" && apt-get download -qq "$1") && mkdir -p "$folder" && dpkg-deb --extract "$download"/*.deb "$folder"
  local result=$?
  rm -rf "$download"
  return $result
}

while read -r program package untested; do
  case $program in '' | '#'*) continue ;; esac
  lacking "$program" || continue
  if command -v apt-get >/dev/null && fetch "$package" && ! lacking "$program"; then
    echo "test: unpacked $program from Debian's package $package into the cache"
  else
    missing+=("$program of Debian's package $package; without it these are not tested: $untested")
  fi
done <requirements/apt.txt

if [ ${#missing[@]} -gt 0 ]; then
  {
    printf 'test: missing %s\n' "${missing[@]}"
    if ! command -v apt-get >/dev/null; then
      echo "test: this machine has no apt; install these programs in its own way"
    elif [ "$(id -u)" != 0 ]; then
      echo "test: apt may need its package lists first, which only root can load: sudo apt-get update"
    fi
  } >&2
  [ -z "${CI:-}" ] || exit 1 # elsewhere those tests are skipped, and say so
fi
