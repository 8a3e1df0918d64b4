#!/usr/bin/env bash
# Creates .venv and installs the pinned packages of one set, `run` or `dev`, and the project itself as editable.
# Changes nothing outside the clone except the download caches of pip and uv.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1} # as pip does: a proxy's own certificate is known to the system only
set_name=${1:?usage: tools/setup.sh run|dev}
new_enough='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'

fail() {
  printf 'setup: %s\n' "$@" >&2
  exit 2
}

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 python}; do
    if "$candidate" -c "$new_enough" 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  fail "found no Python from 3.11 to 3.14 (tried: ${PYTHON:-python3, python3.11 to python3.14, python})." \
    "Install one, on Debian 12 or newer: apt-get install python3 python3-venv" \
    "or name it: make setup PYTHON=/path/to/python3.12"
}

make_venv() {
  local python
  python=$(find_python)
  "$python" -c 'import ensurepip, venv' 2>/dev/null || fail \
    "$python has no venv or ensurepip module, so it cannot create a virtual environment." \
    "On Debian and Ubuntu: apt-get install python3-venv" \
    "or name another Python: make setup PYTHON=/path/to/python3.12"
  printf 'setup: virtual environment in .venv with %s\n' "$("$python" --version)"
  "$python" -m venv --clear .venv
}

.venv/bin/python -c "$new_enough" 2>/dev/null || make_venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/tools.txt
.venv/bin/uv pip install --python .venv/bin/python --compile-bytecode --require-hashes -r "requirements/$set_name.txt"
.venv/bin/uv pip install --python .venv/bin/python --quiet --no-deps --no-build-isolation --editable . --editable simulator
