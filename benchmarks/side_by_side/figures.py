"""Computes the figures of one run as `sglang.bench_serving` (0.5.23) defines them, from the raw
times of its requests.

The definitions are those of `sglang/benchmark/serving.py`; docs/metrics.md says where ours differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

COUNTS: Final = ("requests", "input_tokens", "output_tokens")
RATE: Final = "output_tok_s"
TIMES: Final = ("ttft", "tpot", "itl", "e2e")
SHARES: Final = ("mean", "p50", "p99")
NAMES: Final = (*COUNTS, RATE, *(f"{time}_ms_{share}" for time in TIMES for share in SHARES))
Figures = Mapping[str, float]  # by NAMES; milliseconds, tokens a second


@dataclass(frozen=True, slots=True)
class Times:
    """One request that succeeded.

    Nanoseconds of one clock; `chunks` are (time, tokens) of each event with text.
    """

    sent_ns: int
    chunks: Sequence[tuple[int, int]]
    last_ns: int
    input_tokens: int
    output_tokens: int


def figures(requests: Sequence[Times], after_s: float = 0.0) -> Figures:
    """Return all figures of a run.

    `after_s`: the seconds that bench_serving adds to its duration after the last answer. A latency
    starts when the request is sent, the duration with the first request. Raises ValueError if there
    are no requests.
    """
    if not requests:
        raise ValueError("no request succeeded: there is nothing to compare")
    duration_s = (
        max(one.last_ns for one in requests) - min(one.sent_ns for one in requests)
    ) / 1e9 + after_s
    samples = {
        "ttft": [(one.chunks[0][0] - one.sent_ns) / 1e6 for one in requests],
        "tpot": [
            (one.last_ns - one.chunks[0][0]) / 1e6 / (one.output_tokens - 1)
            for one in requests
            if one.output_tokens > 1
        ],
        "itl": [gap for one in requests for gap in _per_token_ms(one.chunks)],
        "e2e": [(one.last_ns - one.sent_ns) / 1e6 for one in requests],
    }
    counted = {
        "requests": float(len(requests)),
        "input_tokens": float(sum(one.input_tokens for one in requests)),
        "output_tokens": float(sum(one.output_tokens for one in requests)),
    }
    shown = {
        f"{name}_ms_{share}": value
        for name, values in samples.items()
        for share, value in _shares(values)
    }
    return {**counted, RATE: counted["output_tokens"] / duration_s, **shown}


def _per_token_ms(chunks: Sequence[tuple[int, int]]) -> Iterator[float]:
    """Yield the gap before an event once for each of its tokens, divided by their number.

    The tokens of the first event do not count.
    """
    for (before_ns, _), (at_ns, tokens) in pairwise(chunks):
        yield from [(at_ns - before_ns) / 1e6 / tokens] * tokens if tokens else ()


def _shares(values: Sequence[float]) -> Iterable[tuple[str, float]]:
    """Return the mean, median and 99th percentile; 0 for no values, as bench_serving prints."""
    if not values:
        return [(share, 0.0) for share in SHARES]
    return [
        ("mean", float(np.mean(values))),
        ("p50", float(np.percentile(values, 50))),
        ("p99", float(np.percentile(values, 99))),
    ]
