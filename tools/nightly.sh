#!/usr/bin/env bash
# The long form of all proofs, one after the other: about two hours. Runs every step even if one fails, then prints
# how long each took and which failed.
set -uo pipefail
cd "$(dirname "$0")/.."
export CI=${CI:-true} # a service or a program that is missing is a failure, not a skip
summary=() failed=0

step() {
  local started=$SECONDS status=0
  printf '\n== %s\n' "$*"
  "$@" || status=$?
  [ "$status" = 0 ] || failed=1
  summary+=("$(printf '%-12s %6d s  %s' "$([ "$status" = 0 ] && echo passed || echo "FAILED ($status)")" $((SECONDS - started)) "$*")")
}

step make check
step make test
step make test-lab
step make test-real
step make soak SOAK_MINUTES="${SOAK_MINUTES:-30}"
step make bench
printf '\nnightly:\n'
printf '%s\n' "${summary[@]}"
exit "$failed"
