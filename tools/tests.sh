#!/usr/bin/env bash
# Owns how a set of tests is run: files side by side on two cores, then what failed once more, alone. Arguments are pytest's.
# A test that fails only beside others is told by name and does not fail the set; one that fails alone too does.
set -uo pipefail
cd "$(dirname "$0")/.."
.venv/bin/pytest --numprocesses 2 --dist loadfile "$@"
failed=$?
[ $failed = 1 ] || exit $failed
printf '\ntests: the failures above are tried again alone, in case only the load of the others made them late\n'
exec .venv/bin/pytest --last-failed --last-failed-no-failures none "$@"
