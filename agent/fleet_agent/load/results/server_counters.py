"""Reads a server's /metrics before and after a run. The growth of the counters shows the requests
of other clients and the accept length.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final

from fleet_agent.load.client.http_fetch import fetch
from fleet_agent.load.results.load_reply import LoadReply
from fleet_knowledge.sglang_metrics.accept_length import (
    GENERATED,
    AcceptLength,
    SpeculationCounters,
    accept_length_from_counters,
)
from fleet_knowledge.sglang_metrics.accept_rate import (
    AcceptRateDefinition,
    DraftShape,
    accept_rates,
)
from fleet_knowledge.sglang_metrics.device_timer import DeviceTimes, mean_cycle
from fleet_knowledge.sglang_metrics.prometheus_text import is_complete, read_samples, total
from fleet_protos import metric_names as names

_FETCH_TIMEOUT_S: Final = 5.0
_SETTLE_POLLS: Final = 5
# the server counts a request when it finishes, which may be after its last byte was sent
_SETTLE_PAUSE_S: Final = 0.1
# field of core.run_facts.RunFacts → counter (0.4.1 - 0.5.23). SGLang does not count the requests of
# /health_generate.
_COUNTED: Final = {
    "counted_output_tokens": GENERATED,
    "counted_prompt_tokens": "sglang:prompt_tokens_total",
    "counted_requests": "sglang:num_requests_total",
}
# a larger share of difference means that the window includes requests of other clients
_MAX_TOKEN_MISMATCH: Final = 0.02
_RATES: Final = {
    AcceptRateDefinition.OF_STEPS: names.ACCEPT_RATE_OF_STEPS,
    AcceptRateDefinition.OF_TOKENS: names.ACCEPT_RATE_OF_TOKENS,
    AcceptRateDefinition.OF_DRAFTS: names.ACCEPT_RATE_OF_DRAFTS,
}


@dataclass(frozen=True, slots=True)
class CounterSnapshots:
    """Holds the text of /metrics before and after a run. A text is empty if the server has no
    /metrics.
    """

    before: str = ""
    after: str = ""


async def fetch_metrics(url: str, token: str = "") -> str:
    """Return the text of /metrics. Return an empty text if it cannot be read completely."""
    try:
        async with asyncio.timeout(_FETCH_TIMEOUT_S):
            status, content = await fetch(url, "/metrics", api_key=token)
    except (OSError, EOFError, ValueError, TimeoutError):
        return ""
    text = content.decode(errors="replace")
    return text if status == 200 and is_complete(text) else ""


async def fetch_metrics_after(url: str, before: str, tokens: int, token: str = "") -> str:
    """Return /metrics when the server has counted `tokens` more than in `before`. After half a
    second, return what it shows then.
    """
    text = ""
    for _ in range(_SETTLE_POLLS if before else 0):
        text = await fetch_metrics(url, token)
        grown = _counter_growth(before, text)
        if not text or grown is None or grown >= tokens:
            break
        await asyncio.sleep(_SETTLE_PAUSE_S)
    return text


def add_counted(summary: LoadReply, snapshots: CounterSnapshots) -> LoadReply:
    """Return the summary with additional facts: what the server counted during the run, for all of
    its clients.
    """
    before, after = read_samples(snapshots.before), read_samples(snapshots.after)
    counted = {
        name: _growth(total(before, counter), total(after, counter))
        for name, counter in _COUNTED.items()
    }
    return replace(summary, facts={**summary.facts, **counted})


def add_speculation(
    summary: LoadReply, snapshots: CounterSnapshots, shape: DraftShape, time_scale: float = 1.0
) -> LoadReply:
    """Return the summary with metrics about speculation: the accept length by the server's
    counters, the accept rates and the seconds of a cycle.

    `shape` is the number of draft steps and draft tokens. If no request reported its verify steps,
    the accept length by the counters is also used as the accept length of the requests.
    """
    if not summary.metrics:
        return summary
    accepted = _window_accept_length(snapshots, summary.output_tokens)
    own = summary.metrics.get(names.ACCEPT_LENGTH)
    length = own if own is not None else accepted.length
    metrics = {
        names.ACCEPT_LENGTH: length,
        names.ACCEPT_LENGTH_WINDOW: accepted.length,
        names.VERIFY_STEPS: summary.metrics.get(names.VERIFY_STEPS, accepted.verify_count),
        **{_RATES[definition]: rate for definition, rate in accept_rates(length, shape).items()},
        **_cycle_metrics(snapshots, time_scale),
    }
    found = {name: float(value) for name, value in metrics.items() if value is not None}
    return replace(
        summary,
        metrics={**summary.metrics, **found},
        facts={**summary.facts, "accept_length": length},
    )


def _window_accept_length(snapshots: CounterSnapshots, tokens: int) -> AcceptLength:
    grown = _counter_growth(snapshots.before, snapshots.after)
    if grown is None or not tokens or abs(grown - tokens) > _MAX_TOKEN_MISMATCH * tokens:
        return AcceptLength(
            reason="other clients sent requests during the run, or the server has no counters"
        )
    return accept_length_from_counters(
        SpeculationCounters.from_metrics(snapshots.before),
        SpeculationCounters.from_metrics(snapshots.after),
    )


def _counter_growth(before: str, after: str) -> float | None:
    return _growth(
        SpeculationCounters.from_metrics(before).generated,
        SpeculationCounters.from_metrics(after).generated,
    )


def _growth(before: float | None, after: float | None) -> float | None:
    """Return how much a counter has grown. Return None if the counter is missing, or has fallen
    because the server restarted.

    A counter that is missing before the run counts as 0, because it appears with its first request.
    """
    grown = None if after is None else after - (before or 0.0)
    return None if grown is None or grown < 0 else grown


def _cycle_metrics(snapshots: CounterSnapshots, time_scale: float) -> dict[str, float]:
    found = mean_cycle(
        DeviceTimes.from_metrics(snapshots.before), DeviceTimes.from_metrics(snapshots.after)
    )
    if found is None:
        return {}
    seconds = {
        names.DRAFT_S: found.draft_s,
        names.DRAFT_EXTEND_S: found.extend_s,
        names.VERIFY_S: found.verify_s,
    }
    return {name: value * time_scale for name, value in seconds.items()}
