#!/usr/bin/env bash
# Owns how a set of tests is run: NAME WORKERS, then pytest's arguments. Files side by side on so many workers, then what failed once more,
# alone. A test that fails only beside others is told by name and does not fail the set; one that fails alone too does. Each set keeps
# what failed by itself, so that two sets may run at once.
set -uo pipefail
cd "$(dirname "$0")/.."
name=$1 workers=$2
shift 2
pytest=(.venv/bin/pytest -o "cache_dir=.pytest_cache/$name")
"${pytest[@]}" --numprocesses "$workers" --dist loadfile "$@"
failed=$?
[ $failed = 1 ] || exit $failed
printf '\ntests: the failures above are tried again alone, in case only the load of the others made them late\n'
exec "${pytest[@]}" --last-failed --last-failed-no-failures none "$@"
