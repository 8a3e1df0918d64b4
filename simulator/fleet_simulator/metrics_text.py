"""Renders the counters of the simulated server as /metrics, with SGLang's metric names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleet_simulator.batching import Totals

_HELP = {
    "simulated_engine_time_scale": "Model seconds in one wall second of the simulated server.",
    "sglang:num_running_reqs": "The number of running requests.",
    "sglang:num_queue_reqs": "The number of requests in the waiting queue.",
    "sglang:gen_throughput": "The generation throughput (token/s).",
    "sglang:cache_hit_rate": "The prefix cache hit rate.",
    "sglang:spec_accept_length": "Mean acceptance length of speculative decoding.",
    "sglang:spec_accept_rate": "Speculative acceptance rate.",
    "sglang:spec_num_steps": "Currently active speculative_num_steps.",
    "sglang:spec_num_draft_tokens": "Currently active speculative_num_draft_tokens.",
    "sglang:prompt_tokens_total": "Number of prefill tokens processed.",
    "sglang:cached_tokens_total": "Number of cached prompt tokens by source.",
    "sglang:generation_tokens_total": "Number of generation tokens processed.",
    "sglang:spec_verify_calls_total": "Number of speculative verification calls.",
    "sglang:num_requests_total": "Number of requests processed.",
    "sglang:num_aborted_requests_total": "Number of requests aborted.",
}


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Holds the values that /metrics shows in addition to the totals.

    Rates are per second of model time, over the time between the newest two decode lines of the
    log.
    """

    model: str
    time_scale: float
    running: int
    queued: int
    gen_throughput: float
    accept_length: float
    accept_rate: float
    steps: int
    draft_tokens: int


def render_metrics(totals: Totals, now: MetricsSnapshot) -> bytes:
    """Return the metrics in Prometheus' text format, version 0.0.4."""
    model = f'engine_type="unified",model_name="{_escaped(now.model)}"'
    rank = f'{model},moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    hit_rate = totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 0.0
    lines = [
        *_metric("simulated_engine_time_scale", "", now.time_scale),
        *_metric("sglang:num_running_reqs", rank, now.running),
        *_metric("sglang:num_queue_reqs", rank, now.queued),
        *_metric("sglang:gen_throughput", rank, now.gen_throughput),
        *_metric("sglang:cache_hit_rate", rank, hit_rate),
        *_metric("sglang:spec_accept_length", rank, now.accept_length),
        *_metric("sglang:spec_accept_rate", rank, now.accept_rate),
        *_metric("sglang:spec_num_steps", rank, now.steps),
        *_metric("sglang:spec_num_draft_tokens", rank, now.draft_tokens),
        *_metric("sglang:prompt_tokens_total", model, totals.prompt_tokens),
        *_metric(
            "sglang:cached_tokens_total", f'cache_source="device",{model}', totals.cached_tokens
        ),
        *_metric("sglang:generation_tokens_total", model, totals.generated_tokens),
        *_metric("sglang:spec_verify_calls_total", model, totals.verify_steps),
        *_metric("sglang:num_requests_total", model, totals.requests),
        *_metric("sglang:num_aborted_requests_total", model, totals.aborted),
    ]
    return ("\n".join(lines) + "\n").encode()


def _metric(name: str, labels: str, value: float) -> Iterable[str]:
    kind = "counter" if name.endswith("_total") else "gauge"
    return (
        f"# HELP {name} {_HELP[name]}",
        f"# TYPE {name} {kind}",
        f"{name}{{{labels}}} {float(value)}",
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
