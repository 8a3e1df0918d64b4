#!/usr/bin/env bash
# Runs the demo: one job on simulated servers, from its file to the verdict. Its state stays in .benchfleet inside the clone.
set -euo pipefail
cd "$(dirname "$0")/.."
cat <<'TXT'
demo: fleetctl run examples/demo.yaml
demo: six variants (2 NCCL settings × 3 speculation settings), at least three launches each, on this machine.
demo: The servers are SIMULATED: real HTTP servers with a model of time, run many times faster than their model. The controller, the agent,
demo: gRPC, Ray, the journal, the store and the statistics are the real ones. State and raw data: .benchfleet/
TXT
BENCHFLEET_STATE=$PWD/.benchfleet exec .venv/bin/fleetctl run examples/demo.yaml "$@"
