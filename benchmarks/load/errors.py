"""Compares the times, rates and counts that a load client measured with those that the truth server
recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from benchmarks.load.programs import ServerRecord


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """One request as a client measured it.

    Nanoseconds of CLOCK_MONOTONIC; `from_ns` is when its latency starts.
    """

    from_ns: int
    first_ns: int
    last_ns: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Errors:
    """How far a client is from the truth.

    Errors of times are absolute values in milliseconds; `tok_s` is relative.
    """

    ttft_ms: Mapping[str, float]
    tpot_ms: Mapping[str, float]
    tok_s: float
    miscounted: int
    requests: int


def compare(measured: Mapping[str, MeasuredRequest], records: Mapping[str, ServerRecord]) -> Errors:
    """Compare the requests of the client with the server's records.

    Raises ValueError if the server has no record of a request.
    """
    if measured.keys() - records.keys():
        raise ValueError(
            f"the server has no record of {len(measured.keys() - records.keys())} of"
            f" {len(measured)} requests"
        )
    pairs = [(one, records[key]) for key, one in measured.items()]
    ttft = [
        abs((one.first_ns - one.from_ns) - (true.sent_ns[0] - true.received_ns)) / 1e6
        for one, true in pairs
    ]
    tpot = [
        abs(
            _tpot_ns(one.first_ns, one.last_ns, one.tokens)
            - _tpot_ns(true.sent_ns[0], true.sent_ns[-1], true.tokens)
        )
        / 1e6
        for one, true in pairs
        if true.tokens > 1
    ]
    true_ns = max(true.sent_ns[-1] for _, true in pairs) - min(
        true.received_ns for _, true in pairs
    )
    span_ns = max(one.last_ns for one, _ in pairs) - min(one.from_ns for one, _ in pairs)
    rate = sum(one.tokens for one, _ in pairs) / span_ns
    true_rate = sum(true.tokens for _, true in pairs) / true_ns
    return Errors(
        {"p50": percentile(ttft, 0.5), "p99": percentile(ttft, 0.99)},
        {"p50": percentile(tpot, 0.5), "p99": percentile(tpot, 0.99)},
        abs(rate / true_rate - 1),
        sum(one.tokens != true.tokens for one, true in pairs),
        len(pairs),
    )


def _tpot_ns(first_ns: int, last_ns: int, tokens: int) -> float:
    return (last_ns - first_ns) / (tokens - 1)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of them do not exceed; 0 for no values."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0
