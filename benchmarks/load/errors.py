"""Owns the comparison of what a load client measured with what the truth server did: errors of
times, of rates and of counts; pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from benchmarks.load.programs import ServerRecord


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """One request as a client tells it. Nanoseconds of CLOCK_MONOTONIC; `from_ns` is when its
    latency begins.
    """

    from_ns: int
    first_ns: int
    last_ns: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Errors:
    """How far a client is from the truth. Seconds of error are absolute values, milliseconds;
    `tok_s` is relative.
    """

    ttft_ms: Mapping[str, float]
    tpot_ms: Mapping[str, float]
    tok_s: float
    miscounted: int
    requests: int


def compare(measured: Mapping[str, MeasuredRequest], records: Mapping[str, ServerRecord]) -> Errors:
    """Over the requests of both. Raises ValueError when they are not the same ones."""
    if measured.keys() - records.keys():
        raise ValueError(
            f"the server knows nothing of {len(measured.keys() - records.keys())} of {len(measured)} requests"
        )
    pairs = [(one, records[key]) for key, one in measured.items()]
    ttft = [
        abs((one.first_ns - one.from_ns) - (true.sent_ns[0] - true.received_ns)) / 1e6
        for one, true in pairs
    ]
    tpot = [abs(_tpot_ns(one.first_ns, one.last_ns, one.tokens) - _tpot_ns(true.sent_ns[0], true.sent_ns[-1], true.tokens)) / 1e6
            for one, true in pairs if true.tokens > 1]  # fmt: skip
    true_ns = max(true.sent_ns[-1] for _, true in pairs) - min(
        true.received_ns for _, true in pairs
    )
    span_ns = max(one.last_ns for one, _ in pairs) - min(one.from_ns for one, _ in pairs)
    rate, true_rate = (
        sum(one.tokens for one, _ in pairs) / span_ns,
        sum(true.tokens for _, true in pairs) / true_ns,
    )
    return Errors(
        {"p50": percentile(ttft, 0.5), "p99": percentile(ttft, 0.99)}, {"p50": percentile(tpot, 0.5), "p99": percentile(tpot, 0.99)},
        abs(rate / true_rate - 1), sum(one.tokens != true.tokens for one, true in pairs), len(pairs),
    )  # fmt: skip


def _tpot_ns(first_ns: int, last_ns: int, tokens: int) -> float:
    return (last_ns - first_ns) / (tokens - 1)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0
