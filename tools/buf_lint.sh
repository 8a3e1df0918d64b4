#!/usr/bin/env bash
# Lints the .proto files with a pinned buf, if npm is installed. buf is kept in the user's cache, never in the clone.
set -euo pipefail
cd "$(dirname "$0")/.."
version=1.75.0
folder=${XDG_CACHE_HOME:-$HOME/.cache}/benchfleet/buf-$version
buf=$folder/node_modules/.bin/buf
if [ ! -x "$buf" ]; then
  if ! command -v npm >/dev/null; then
    echo "buf: skipped, npm is not installed (the .proto files are still compiled by the drift check)"
    exit 0
  fi
  echo "buf: installing @bufbuild/buf $version into the cache, once"
  if ! npm install --silent --no-audit --no-fund --no-save --prefix "$folder" "@bufbuild/buf@$version"; then
    echo "buf: skipped, npm could not install it"
    [ -z "${CI:-}" ] && exit 0 || exit 1 # CI must not skip a check silently
  fi
fi
"$buf" lint
echo "buf: no finding"
