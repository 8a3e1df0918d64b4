#!/usr/bin/env bash
# Generates the committed stubs and values from protos/**/*.proto: `write` replaces them, `check` fails if they differ.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
descriptors=$(mktemp)
fresh=$(mktemp -d)
trap 'rm -rf "$descriptors" "$fresh"' EXIT

generate() {
  python -m grpc_tools.protoc -I protos --python_out="$1" --mypy_out="$1" --grpc_python_out="$1" --mypy_grpc_out="$1" \
    --descriptor_set_out="$descriptors" --include_source_info \
    protos/fleet_protos/v1/*.proto 2> >(grep -v '^Writing mypy' >&2)
  python -m tools.values "$descriptors" "$1"
}

case ${1:?usage: tools/protos.sh write|check} in
  write) generate protos ;;
  check)
    generate "$fresh"
    if ! diff -r --brief --exclude=__init__.py --exclude=__pycache__ --exclude='*.proto' \
      "$fresh/fleet_protos/v1" protos/fleet_protos/v1; then
      echo "protos: the committed files differ from what protos/fleet_protos/v1/*.proto gives; run: make protos" >&2
      exit 1
    fi
    echo "protos: the stubs and values match the .proto files"
    ;;
  *) echo "usage: tools/protos.sh write|check" >&2; exit 2 ;;
esac
