"""Owns the way from the requests of one run to its metrics and the facts that gates judge; pure. Definitions: docs/metrics.md.

Wall time becomes model time here and nowhere else: metrics and `duration_s` are model time, the facts stay wall time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor
from typing import Any, Final

from fleet_agent.load.records import Request, Response
from fleet_protos import metrics as names
from fleet_protos.trial import Workload

SALT_TOKENS: Final = 4  # the first tokens of two salts may be equal by chance: as many cached tokens are no cache hit
SHARE_LEAST_REQUESTS: Final = 20


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a run was asked to be. `template_tokens`: prompt tokens of the chat template, cached by plan; None: the probes saw none told."""

    workload: Workload
    time_scale: float = 1.0
    template_tokens: int | None = None
    lags_ns: tuple[int, ...] = ()
    speculation: bool = False  # asked for by the variant


@dataclass(frozen=True, slots=True)
class Summary:
    """One run in numbers. `duration_s` is model time."""

    metrics: dict[str, float]
    facts: dict[str, Any]
    error_examples: dict[str, str]  # one server's or system's own words for each error kind
    requests_ok: int
    requests_failed: int
    output_tokens: int
    duration_s: float


def summarise(requests: Sequence[Request], conditions: Conditions) -> Summary:
    """Metrics over the requests that succeeded (no metric without one), facts over all of them."""
    good = [request for request in requests if request.ok]
    tokens = sum(request.response.completion_tokens or 0 for request in good)
    wall_s = _span_s(requests)
    metrics = _metrics(good, tokens, wall_s, conditions) if tokens and wall_s > 0 else {}
    facts = _facts(requests, good, conditions)
    examples = {request.response.error_kind: request.response.error_detail for request in reversed(requests) if not request.ok}
    return Summary(metrics, facts, examples, len(good), len(requests) - len(good), tokens, wall_s * conditions.time_scale)


def percentile(values: Sequence[float], share: float) -> float:
    """Exact sample percentile with linear interpolation between the closest ranks (NumPy's default, Hyndman and Fan's type 7).

    `share` is in 0..1; 0.0 for no values.
    """
    if not values:
        return 0.0
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _span_s(requests: Sequence[Request]) -> float:
    """From the first intended send to the last byte, wall seconds."""
    if not requests:
        return 0.0
    return (max(request.end_ns for request in requests) - min(request.intended_ns for request in requests)) / 1e9


def _metrics(good: Sequence[Request], tokens: int, wall_s: float, conditions: Conditions) -> dict[str, float]:
    scale = conditions.time_scale
    e2e = [scale * (request.end_ns - request.intended_ns) / 1e9 for request in good]
    ttft = [scale * (_first_ns(request) - request.intended_ns) / 1e9 for request in good if _first_ns(request)]
    tpot = [scale * _tpot_s(request) for request in good if (request.response.completion_tokens or 0) > 1 and _first_ns(request)]
    gaps = [scale * gap for request in good for gap in _gaps_s(request)]
    users = [(request.response.completion_tokens or 0) / time for request, time in zip(good, e2e, strict=True) if time > 0]
    values: dict[str, float | None] = {
        names.OUTPUT_TOK_S: tokens / (wall_s * scale),
        names.TOK_S_PER_USER: _mean(users),
        names.TTFT_P50: percentile(ttft, 0.5) if ttft else None,
        names.TTFT_P99: percentile(ttft, 0.99) if ttft else None,
        names.TPOT_MEAN: _mean(tpot),
        names.TPOT_P50: percentile(tpot, 0.5) if tpot else None,
        names.TPOT_P99: percentile(tpot, 0.99) if tpot else None,
        names.ICL_P50: percentile(gaps, 0.5) if gaps else None,
        names.ICL_P99: percentile(gaps, 0.99) if gaps else None,
        names.E2E_P50: percentile(e2e, 0.5),
        names.E2E_P99: percentile(e2e, 0.99),
        names.DISPATCH_DELAY_P99: scale * _dispatch_p99_s(good),
        names.ACHIEVED_CONCURRENCY: sum(e2e) / (wall_s * scale),
        names.ACCEPT_LENGTH: _accept_length(good),
        names.VERIFY_STEPS: float(_verify_steps(good)) or None,
        names.CACHED_TOKEN_RATIO: _cached_ratio(good, conditions.template_tokens),
        names.GOODPUT_RATIO: _goodput(good, conditions),
    }
    return {name: value for name, value in values.items() if value is not None}


def _facts(requests: Sequence[Request], good: Sequence[Request], conditions: Conditions) -> dict[str, Any]:
    """The fields of core.gates.RunFacts. They judge the client, so their seconds are wall seconds."""
    counts = [request.response.completion_tokens or 0 for request in good]
    return {
        "requests_ok": len(good),
        "requests_failed": len(requests) - len(good),
        "error_kinds": dict(Counter(request.response.error_kind for request in requests if not request.ok)),
        "finish_reasons": dict(Counter(request.response.finish_reason for request in good)),
        "completion_tokens_min": min(counts, default=0),
        "completion_tokens_max": max(counts, default=0),
        "zero_token_requests": sum(1 for request in good if not request.response.completion_tokens or not _first_ns(request)),
        "cached_token_ratio": _cached_ratio(good, conditions.template_tokens),
        "achieved_concurrency": _steady_concurrency(requests) if conditions.workload.concurrency else 0.0,
        "dispatch_delay_p99_s": _dispatch_p99_s(requests),
        "loop_lag_p99_s": percentile(conditions.lags_ns, 0.99) / 1e9,
        "speculation": conditions.speculation,
        "accept_length": _accept_length(good),
        "answered_share": _answered_share(good) if conditions.workload.rate_per_s else None,
        "client_count_mismatch": _count_mismatch(good),
    }


def _first_ns(request: Request) -> int:
    return request.response.first_output_ns


def _tpot_s(request: Request) -> float:
    return (request.end_ns - _first_ns(request)) / 1e9 / ((request.response.completion_tokens or 0) - 1)


def _gaps_s(request: Request) -> list[float]:
    times = request.response.chunk_ns
    return [(later - earlier) / 1e9 for earlier, later in pairwise(times)]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _dispatch_p99_s(requests: Sequence[Request]) -> float:
    return percentile([(request.sent_ns - request.intended_ns) / 1e9 for request in requests if request.sent_ns], 0.99)


def _accept_length(good: Sequence[Request]) -> float | None:
    """Tokens per verify step over the requests that report steps; None: no speculation."""
    told = [request.response for request in good if request.response.verify_ct]
    steps = _verify_steps(good)
    return sum(response.completion_tokens or 0 for response in told) / steps if steps else None


def _verify_steps(good: Sequence[Request]) -> int:
    return sum(request.response.verify_ct or 0 for request in good)


def _cached_ratio(good: Sequence[Request], template_tokens: int | None) -> float | None:
    """Cached prompt tokens beyond the template's and a salt's chance, by prompt tokens; None: the server does not report them.

    SGLang's chat answers leave the count out when it is 0, so a server that told it to the probes means 0 by silence.
    """
    told = [request.response for request in good if template_tokens is not None or request.response.cached_tokens is not None]
    prompt_tokens = sum(response.prompt_tokens or 0 for response in told)
    if not prompt_tokens:
        return None
    planned = (template_tokens or 0) + SALT_TOKENS
    return sum(max(0, (response.cached_tokens or 0) - planned) for response in told) / prompt_tokens


def _steady_concurrency(requests: Sequence[Request]) -> float:
    """Mean requests in flight from the first intended send to the first end after the last sending (then slots run out of work)."""
    sent = [request for request in requests if request.sent_ns]
    if not sent:
        return 0.0
    start = min(request.intended_ns for request in sent)
    last_sent = max(request.sent_ns for request in sent)
    end = min((request.end_ns for request in sent if request.end_ns > last_sent), default=last_sent)
    flown = sum(max(0, min(request.end_ns, end) - request.sent_ns) for request in sent)
    return flown / (end - start) if end > start else 0.0


def _answered_share(good: Sequence[Request]) -> float | None:
    """Answers that ended in the second half of the arrivals, by the requests due in it; None for fewer than 20 of these."""
    due = sorted(request.intended_ns for request in good)
    if not due:
        return None
    half, last = (due[0] + due[-1]) // 2, due[-1]
    asked = sum(half < at <= last for at in due)
    return sum(half < request.end_ns <= last for request in good) / asked if asked >= SHARE_LEAST_REQUESTS else None


def _count_mismatch(good: Sequence[Request]) -> float | None:
    """How far the client's own count of tokens is from the server's; None: it could not count.

    Without token ids it has only chunks, each of at least one token: more chunks than tokens are a mismatch, fewer tell nothing.
    """
    told = sum(request.response.completion_tokens or 0 for request in good)
    off = sum(_miscount(request.response) for request in good)
    if not told or not (off or all(request.response.own_is_exact for request in good)):
        return None
    return off / told


def _miscount(response: Response) -> int:
    off = response.own_tokens - (response.completion_tokens or 0)
    return abs(off) if response.own_is_exact else max(0, off)


def _goodput(good: Sequence[Request], conditions: Conditions) -> float | None:
    """Share of the requests that met every limit asked for; None when none was."""
    slo, scale = conditions.workload.slo, conditions.time_scale
    if not (slo.ttft_p99_s or slo.tpot_p99_s):
        return None
    met = 0
    for request in good:
        ttft_s = scale * (_first_ns(request) - request.intended_ns) / 1e9
        tpot_s = scale * _tpot_s(request) if (request.response.completion_tokens or 0) > 1 else 0.0
        met += (not slo.ttft_p99_s or ttft_s <= slo.ttft_p99_s) and (not slo.tpot_p99_s or tpot_s <= slo.tpot_p99_s)
    return met / len(good)
