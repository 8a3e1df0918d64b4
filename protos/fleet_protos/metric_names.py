"""Defines the names of all metrics. Agent, controller, dashboards and reports share these names.

Times in a run's metrics come from the client's monotonic clock. Token counts come from the server.
"""

from __future__ import annotations

# Metrics of one run (RunResult.metrics), in seconds unless the name says otherwise; pNN are exact
# percentiles over requests.
OUTPUT_TOK_S = "output_tok_s"  # completion tokens of the run / (last byte - first intended send)
TOK_S_PER_USER = "tok_s_per_user"  # mean over requests of completion tokens / end-to-end time
TTFT_P50 = "ttft_s_p50"
TTFT_P99 = "ttft_s_p99"
# (end-to-end - time to first token) / (completion tokens - 1), mean over requests
TPOT_MEAN = "tpot_s_mean"
TPOT_P50 = "tpot_s_p50"
TPOT_P99 = "tpot_s_p99"
ICL_P50 = "icl_s_p50"  # between two chunks that carried output, over all chunks
ICL_P99 = "icl_s_p99"
E2E_P50 = "e2e_s_p50"
E2E_P99 = "e2e_s_p99"
DISPATCH_DELAY_P99 = "dispatch_delay_s_p99"  # real send - intended send
ACHIEVED_CONCURRENCY = "achieved_concurrency"  # sum of end-to-end times / duration
# completion tokens / verify steps, bonus token counted; absent without speculation
ACCEPT_LENGTH = "accept_length"
# the same, from the server's counters around the run; absent where they include other requests
ACCEPT_LENGTH_WINDOW = "accept_length_window"
VERIFY_STEPS = "verify_steps"  # of all requests; absent without speculation
# "Accept rate" has had three meanings in SGLang (fleet_knowledge.sglang_metrics.accept_rate); each
# is computed from the accept length. The comments give SGLang's versions.
ACCEPT_RATE_OF_STEPS = "accept_rate_of_steps"  # length / (steps + 1): 0.5.3 - 0.5.4
ACCEPT_RATE_OF_TOKENS = "accept_rate_of_tokens"  # length / draft tokens: 0.5.5 - 0.5.10
ACCEPT_RATE_OF_DRAFTS = "accept_rate_of_drafts"  # (length - 1) / (draft tokens - 1): from 0.5.11
# GPU seconds of one speculation cycle of a batch; absent without the device timer
DRAFT_S = "draft_s_per_cycle"
DRAFT_EXTEND_S = "draft_extend_s_per_cycle"
VERIFY_S = "verify_s_per_cycle"
# cached prompt tokens beyond those of the chat template / prompt tokens
CACHED_TOKEN_RATIO = "cached_token_ratio"
GOODPUT_RATIO = "goodput_ratio"  # share of requests that met the workload's SLO; absent without one
# CPU time that the client used in microseconds of one core / completion tokens; never model time
CLIENT_CPU_US_PER_TOKEN = "client_cpu_us_per_token"
# What the client could drive, from its calibration against a null server; wall time, never model
# time; absent where it was not calibrated.
CLIENT_CAPACITY = "client_capacity_tok_s"  # all shards of the run together, at one token per read
CLIENT_USE = "client_use_ratio"  # share of that capacity that the run used

# Metrics of one launch: the highest load of a search that met the SLO, in requests per second or in
# flight.
HIGHEST_RATE = "highest_rate_per_s"
HIGHEST_CONCURRENCY = "highest_concurrency"

# True where a larger value is better: for rates and loads, not for times.
HIGHER_IS_BETTER = {
    OUTPUT_TOK_S: True,
    TOK_S_PER_USER: True,
    TTFT_P50: False,
    TTFT_P99: False,
    TPOT_MEAN: False,
    TPOT_P50: False,
    TPOT_P99: False,
    ICL_P50: False,
    ICL_P99: False,
    E2E_P50: False,
    E2E_P99: False,
    HIGHEST_RATE: True,
    HIGHEST_CONCURRENCY: True,
}

# Prometheus. Labels are bounded: host, job, variant, workload, engine (and phase, outcome).
PROM_TRIALS = "fleet_trials"
PROM_HOSTS = "fleet_hosts"  # the controller's hosts by state
PROM_RUNS = "fleet_runs_total"
PROM_OUTPUT_TOK_S = "fleet_run_output_tokens_per_second"
PROM_TTFT_P50 = "fleet_run_ttft_p50_seconds"
PROM_TPOT_MEAN = "fleet_run_time_per_output_token_seconds"
PROM_ACCEPT_LENGTH = "fleet_run_accept_length"
PROM_CERTIFICATE_EXPIRES = "fleet_certificate_expires_timestamp_seconds"  # labels role, host
RUN_LABELS = ("host", "job", "variant", "workload", "engine")
