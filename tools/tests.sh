#!/usr/bin/env bash
# Runs a set of tests: tests.sh NAME WORKERS [pytest arguments]. Distributes the files over the workers, then runs the failed tests again, one
# at a time. A test that fails only next to others is reported by name but does not fail the set; one that fails alone too does. Each set
# keeps its own list of failures, so that two sets may run at once.
set -uo pipefail
cd "$(dirname "$0")/.."
name=$1 workers=$2
shift 2
pytest=(.venv/bin/pytest -o "cache_dir=.pytest_cache/$name")
"${pytest[@]}" --numprocesses "$workers" --dist loadfile "$@"
failed=$?
[ $failed = 1 ] || exit $failed
printf '\ntests: the failures above are run again alone, in case the load of the other tests made them too slow\n'
exec "${pytest[@]}" --last-failed --last-failed-no-failures none "$@"
