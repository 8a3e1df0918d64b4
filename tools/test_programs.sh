#!/usr/bin/env bash
# Owns the programs that the tests call beside Python: gets what requirements/apt.txt lists and this machine lacks, or says what is not tested.
# Unpacks packages into the user's cache instead of installing them, so that no service is started and nothing is replaced.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${XDG_CACHE_HOME:-$HOME/.cache}/benchfleet/programs
missing=0

lacking() {
  PATH=$PATH:$folder/usr/bin:$(printf '%s:' /usr/lib/postgresql/*/bin) command -v "$1" >/dev/null && return 1 || return 0
}

fetch() {
  local download result
  download=$(mktemp -d)
  if [ "$(id -u)" = 0 ]; then
    chown _apt "$download" 2>/dev/null || true # apt downloads as a user of its own
    if [ -z "$(apt-cache policy "$1" 2>/dev/null)" ]; then apt-get update -qq; fi
  fi
  (cd "$download" && apt-get download -qq "$1") && mkdir -p "$folder" && dpkg-deb --extract "$download"/*.deb "$folder"
  result=$?
  rm -rf "$download"
  return $result
}

tell_missing() {
  echo "test: $1 is missing; not tested without it: $3. It is in Debian's package $2."
  if ! command -v apt-get >/dev/null; then
    echo "test: this machine has no apt: install the program in its own way"
  elif [ "$(id -u)" != 0 ]; then
    echo "test: you are not root: sudo apt-get install $2, or sudo apt-get update and try again"
  else
    echo "test: apt-get install $2"
  fi
} >&2

while read -r program package how untested; do
  case $program in '' | '#'*) continue ;; esac
  [ "$how" != lab ] || continue # tools/lab_programs.sh
  lacking "$program" || continue
  if [ "$how" = unpack ] && command -v apt-get >/dev/null && fetch "$package" && ! lacking "$program"; then
    echo "test: unpacked $program from Debian's package $package into the cache"
    continue
  fi
  tell_missing "$program" "$package" "$untested"
  if [ "$how" = unpack ]; then missing=1; fi
done <requirements/apt.txt

[ $missing = 0 ] || [ -z "${CI:-}" ] # elsewhere those tests are skipped, and say so
