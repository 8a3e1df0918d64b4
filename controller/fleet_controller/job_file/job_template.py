"""The commented job file that `fleetctl init` writes. It lints without errors and warnings."""

from __future__ import annotations

_JOB_TEMPLATE = """\
# A job of benchfleet: what to launch, what to vary, what to measure.
# The reference is docs/user/job-file.md.
#   fleetctl lint job.yaml     check it before it takes any GPU time
#   fleetctl plan job.yaml     show what would run, in which order, and how long it may take
#   fleetctl run job.yaml      run it on this machine, up to the verdict
apiVersion: benchfleet/v1
kind: Job
name: nccl-test # lower-case letters, digits and dashes

model:
  path: moonshotai/Kimi-K2.5 # a folder on the host, or a name that SGLang can resolve

engine:
  kind: sglang # or simulated: no GPU, a model of time; or external: a running server, with `url:`
  python: ~/ml-env/bin/python3 # a virtual environment on the host that has SGLang
  gpus: 8
  args: # SGLang's own names, underscores for dashes; a flag is true
    tp_size: 8
    trust_remote_code: true
  env: {} # variables beyond a small base: nothing is inherited from your shell
  ready_timeout: 30m

# Every combination of levels is a variant. A level sets arguments and variables; null removes one.
factors:
  nccl:
    default: {}
    tuned:
      env:
        NCCL_PROTO: LL
        NCCL_ALGO: Ring
  # speculation:
  #   none: {}
  #   eagle3:
  #     args:
  #       speculative_algorithm: EAGLE3
  #       speculative_draft_model_path: /models/draft
  #       speculative_num_steps: 3
  #       speculative_eagle_topk: 1
  #       speculative_num_draft_tokens: 4

# Combinations of levels to leave out, partial or full.
# exclude:
#   - {nccl: tuned, speculation: eagle3}

# The variant that all others are compared with.
baseline:
  nccl: default
"""
# The part of a job file that does not depend on what is launched.
WORKLOADS_AND_MEASURE = """
# All workloads are measured in every launch.
workloads:
  single: # one request at a time
    concurrency: 1
    prompts: builtin:chat
    output_tokens: 500
  # busy: # a list makes one workload for each value: busy@8, busy@32
  #   concurrency: [8, 32]
  #   output_tokens: 500
  # open: # requests arrive at a fixed rate, however fast the server answers
  #   rate: 4
  #   duration: 60s
  #   output_tokens: 500
  #   slo: {ttft_p99: 2s, tpot_p99: 50ms}
  # bursts:
  #   rate: 4
  #   arrivals: gamma
  #   burstiness: 0.25
  #   duration: 60s
  #   output_tokens: {lognormal: {median: 150, sigma: 0.8, max: 2000}}
  # limit: # the highest rate that meets the slo
  #   search: {of: rate, from: 1, to: 64}
  #   duration: 60s
  #   output_tokens: 500
  #   slo: {ttft_p99: 2s}
  # Ramps, traces, prompts from a file, shared beginnings, sessions and mixtures:
  # docs/user/job-file.md

measure:
  launches: 3 # of each variant; intervals are over launches, because launches differ
  runs: {min: 5, max: 20} # in each launch, until the precision is reached
  precision: 2%
  confidence: 95%
  margin: 2% # a difference below this does not matter
  warmup: auto
  seed: 1 # for the order of launches: the same seed gives the same plan

hosts:
  # names: [gpu-01, gpu-02]
  # labels: {gpu: h200}
  placement: every_host
"""


def job_template() -> str:
    """Return a commented job file."""
    return _JOB_TEMPLATE + WORKLOADS_AND_MEASURE
