"""Owns the commented files that `fleetctl init` writes; they lint without errors and warnings.
Writes nothing itself.
"""

from __future__ import annotations

_JOB_TEMPLATE = """\
# A job of benchfleet: what to launch, what to vary, what to measure. The reference is docs/user/job-file.md.
#   fleetctl lint job.yaml     what is wrong with it, before any GPU time
#   fleetctl plan job.yaml     what would run, in which order, and how long it may take
#   fleetctl run job.yaml      run it on this machine, to the verdict
apiVersion: benchfleet/v1
kind: Job
name: nccl-test # small letters, digits and dashes

model:
  path: moonshotai/Kimi-K2.5 # a folder on the host, or a name that SGLang can resolve

engine:
  kind: sglang # or simulated: no GPU, a model of time; or external: a server that already runs, with `url:`
  python: ~/ml-env/bin/python3 # a virtual environment on the host that holds SGLang
  gpus: 8
  args: # SGLang's own names, underscores for dashes; a flag is true
    tp_size: 8
    trust_remote_code: true
  env: {} # all that the server gets beyond a small base: nothing is inherited from your shell
  ready_timeout: 30m

# Every combination of levels is a variant. A level sets arguments and variables; null takes one away.
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

# Combinations to leave out, in part or in full.
# exclude:
#   - {nccl: tuned, speculation: eagle3}

# What all others are compared with.
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
  # busy: # a list makes one workload each: busy@8, busy@32
  #   concurrency: [8, 32]
  #   output_tokens: 500
  # open: # requests arrive at a rate, whatever the server does
  #   rate: 4
  #   duration: 60s
  #   output_tokens: 500
  #   slo: {ttft_p99: 2s, tpot_p99: 50ms}
  # bursts: {rate: 4, arrivals: gamma, burstiness: 0.25, duration: 60s, output_tokens: {lognormal: {median: 150, sigma: 0.8, max: 2000}}}
  # limit: {search: {of: rate, from: 1, to: 64}, duration: 60s, output_tokens: 500, slo: {ttft_p99: 2s}} # the highest rate that meets it
  # Ramps, traces, prompts of a file, shared beginnings, sessions and mixtures: docs/user/job-file.md

measure:
  launches: 3 # of each variant: launches differ, so they are what the interval is over
  runs: {min: 5, max: 20} # inside one launch, until the precision is reached
  precision: 2%
  confidence: 95%
  margin: 2% # a difference below this does not matter
  warmup: auto
  seed: 1 # of the order of launches: the same seed gives the same plan

hosts:
  # names: [gpu-01, gpu-02]
  # labels: {gpu: h200}
  placement: every_host
"""


def job_template() -> str:
    """A commented job file."""
    return _JOB_TEMPLATE + WORKLOADS_AND_MEASURE
