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

while read -r program package; do
  case $program in '' | '#'*) continue ;; esac
  lacking "$program" || continue
  if command -v apt-get >/dev/null && fetch "$package" && ! lacking "$program"; then
    echo "test: unpacked $program from Debian's package $package into the cache"
  else
    missing+=("$program ($package)")
  fi
done <requirements/apt.txt

if [ ${#missing[@]} -gt 0 ]; then
  {
    echo "test: missing programs: ${missing[*]}"
    echo "test: apt or its package lists are missing here; as root: apt-get update && make test, or install them yourself"
    echo "test: the tests that call them are skipped, and say so; CI fails instead"
  } >&2
  [ -z "${CI:-}" ] || exit 1
fi
