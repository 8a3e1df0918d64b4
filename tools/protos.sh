#!/usr/bin/env bash
# Generates the committed stubs from protos/**/*.proto: `write` replaces them, `check` fails if they differ.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH

generate() {
  python -m grpc_tools.protoc -I protos --python_out="$1" --mypy_out="$1" --grpc_python_out="$1" --mypy_grpc_out="$1" \
    protos/fleet_protos/v1/*.proto 2> >(grep -v '^Writing mypy' >&2)
}

case ${1:?usage: tools/protos.sh write|check} in
  write) generate protos ;;
  check)
    fresh=$(mktemp -d)
    trap 'rm -rf "$fresh"' EXIT
    generate "$fresh"
    if ! diff -r --brief --exclude=__init__.py --exclude=__pycache__ --exclude='*.proto' \
      "$fresh/fleet_protos/v1" protos/fleet_protos/v1; then
      echo "protos: the committed stubs differ from protos/fleet_protos/v1/*.proto; run: make protos" >&2
      exit 1
    fi
    echo "protos: the stubs match the .proto files"
    ;;
  *) echo "usage: tools/protos.sh write|check" >&2; exit 2 ;;
esac
