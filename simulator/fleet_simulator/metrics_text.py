"""Owns the text of /metrics: SGLang's names for what the simulated engine counts. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleet_simulator.batching import Totals


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """What is shown besides the totals. Rates are of model time, over the latest decode log
    interval.
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
    """Prometheus text, version 0.0.4."""
    rank = f'engine_type="unified",model_name="{_escaped(now.model)}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    source = f'cache_source="device",engine_type="unified",model_name="{_escaped(now.model)}"'
    plain = f'engine_type="unified",model_name="{_escaped(now.model)}"'
    hit_rate = totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 0.0
    lines = [
        *_metric(
            "simulated_engine_time_scale",
            "gauge",
            "The simulated engine: model seconds in a wall second.",
            "",
            now.time_scale,
        ),
        *_metric(
            "sglang:num_running_reqs", "gauge", "The number of running requests.", rank, now.running
        ),
        *_metric(
            "sglang:num_queue_reqs",
            "gauge",
            "The number of requests in the waiting queue.",
            rank,
            now.queued,
        ),
        *_metric(
            "sglang:gen_throughput",
            "gauge",
            "The generation throughput (token/s).",
            rank,
            now.gen_throughput,
        ),
        *_metric("sglang:cache_hit_rate", "gauge", "The prefix cache hit rate.", rank, hit_rate),
        *_metric(
            "sglang:spec_accept_length",
            "gauge",
            "Mean acceptance length of speculative decoding.",
            rank,
            now.accept_length,
        ),
        *_metric(
            "sglang:spec_accept_rate",
            "gauge",
            "Speculative acceptance rate.",
            rank,
            now.accept_rate,
        ),
        *_metric(
            "sglang:spec_num_steps",
            "gauge",
            "Currently active speculative_num_steps.",
            rank,
            now.steps,
        ),
        *_metric(
            "sglang:spec_num_draft_tokens",
            "gauge",
            "Currently active speculative_num_draft_tokens.",
            rank,
            now.draft_tokens,
        ),
        *_metric(
            "sglang:prompt_tokens_total",
            "counter",
            "Number of prefill tokens processed.",
            plain,
            totals.prompt_tokens,
        ),
        *_metric(
            "sglang:cached_tokens_total",
            "counter",
            "Number of cached prompt tokens by source.",
            source,
            totals.cached_tokens,
        ),
        *_metric(
            "sglang:generation_tokens_total",
            "counter",
            "Number of generation tokens processed.",
            plain,
            totals.generated_tokens,
        ),
        *_metric(
            "sglang:spec_verify_calls_total",
            "counter",
            "Number of speculative verification calls.",
            plain,
            totals.verify_steps,
        ),
        *_metric(
            "sglang:num_requests_total",
            "counter",
            "Number of requests processed.",
            plain,
            totals.requests,
        ),
        *_metric(
            "sglang:num_aborted_requests_total",
            "counter",
            "Number of requests aborted.",
            plain,
            totals.aborted,
        ),
    ]
    return ("\n".join(lines) + "\n").encode()


def _metric(name: str, kind: str, text: str, labels: str, value: float) -> Iterable[str]:
    return (f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name}{{{labels}}} {float(value)}")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
