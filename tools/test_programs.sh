#!/usr/bin/env bash
# Provides the programs other than Python that the tests call: unpacks what requirements/apt.txt lists and this machine lacks, or prints what is
# not tested without it. Packages are unpacked into the user's cache and not installed, so that no service starts and nothing is replaced.
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
    chown _apt "$download" 2>/dev/null || true # apt downloads as the user _apt
    if [ -z "$(apt-cache policy "$1" 2>/dev/null)" ]; then apt-get update -qq; fi
  fi
  (cd "$download" && apt-get download -qq "$1") && mkdir -p "$folder" && dpkg-deb --extract "$download"/*.deb "$folder"
  result=$?
  rm -rf "$download"
  return $result
}

report_missing() {
  echo "test: $1 is missing; without it these are not tested: $3. Debian's package $2 has it."
  if ! command -v apt-get >/dev/null; then
    echo "test: this machine has no apt: install the program with its package manager"
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
  report_missing "$program" "$package" "$untested"
  if [ "$how" = unpack ]; then missing=1; fi
done <requirements/apt.txt

[ $missing = 0 ] || [ -z "${CI:-}" ] # outside CI those tests are skipped, and say so
