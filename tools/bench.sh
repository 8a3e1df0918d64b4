#!/usr/bin/env bash
# Runs all benchmarks of `make bench`, then lists every limit that was missed.
set -uo pipefail
cd "$(dirname "$0")/.."
output=$(mktemp)
trap 'rm -f "$output"' EXIT
missed=

measure() {
  printf '\n== %s\n' "$*"
  .venv/bin/python -u "$@" | tee "$output"
  local status=${PIPESTATUS[0]} lines
  lines=$(grep -E 'MISSED|EXCEEDED' "$output")
  [ "$status" = 0 ] && [ -z "$lines" ] || missed+="$* (exit code $status)"$'\n'${lines:+$lines$'\n'}
}

measure benchmarks/overhead.py
measure benchmarks/diagnose.py
measure -m benchmarks.restart
measure tests/real_sglang/environment.py # what the next one needs
measure -m benchmarks.load
[ -z "$missed" ] || { printf '\nbench: missed limits\n%s' "$missed"; exit 1; }
