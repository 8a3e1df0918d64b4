#!/usr/bin/env bash
# Writes requirements/*.txt from pyproject.toml, with hashes, for Python 3.11 and newer on Linux.
# No line names a registry or a path: pip and uv use the registry that the user has configured.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=.venv/bin/uv
compile() {
  # benchfleet-simulator is the folder simulator/ of this repository, which tools/setup.sh installs.
  "$uv" pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
    --no-header --no-annotate --no-emit-index-url --no-emit-find-links --no-emit-package benchfleet-simulator "$@"
}
compile pyproject.toml --extra agent --extra controller --output-file requirements/run.txt
# What deploy installs on hosts: the versions that were tested here.
compile pyproject.toml --extra agent --constraints requirements/run.txt --output-file controller/fleet_controller/deploy/agent-requirements.txt
compile pyproject.toml --extra dev --constraints requirements/run.txt --output-file requirements/dev.txt
printf "%s\n" uv hatchling editables | compile - --constraints requirements/dev.txt --output-file requirements/tools.txt
wc -l requirements/*.txt
