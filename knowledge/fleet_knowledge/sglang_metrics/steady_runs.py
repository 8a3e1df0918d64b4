"""Selects the steady runs among several runs on one server. States a reason for each
dropped run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

STEADY_RUNS = 3
SPREAD_MAX = 0.05  # (largest - smallest) / median of the steady runs
# A kernel was compiled while requests ran (sglang issues 4773, 5031; PR 4858; 0.4.5 - 0.5.23).
_JIT = re.compile(
    r"DeepGEMM JIT code generation|Entering DeepGEMM JIT|DeepGEMM warmup:|Try DeepGEMM JIT|"
    r"DeepGEMM JIT Compiling|Compiling Triton kernel"
    r"|Autotuning kernel|flashinfer\.jit: Loading JIT ops|AUTOTUNE \w+\("
)


@dataclass(frozen=True, slots=True)
class SteadyRuns:
    """Lists the steady runs by their number, counted from 1.

    `value` is the median rate of the steady runs. `dropped` maps the number of each other run to
    the reason why it does not count.
    """

    steady: tuple[int, ...] = ()
    value: float | None = None
    dropped: Mapping[int, str] = field(default_factory=dict)
    needs_more: bool = False


def is_jit_line(line: str) -> bool:
    """Return whether a log line reports the compilation of a kernel.

    Such a line inside a measured window invalidates the run.
    """
    return bool(_JIT.search(line))


def select_steady_runs(
    values: Sequence[float | None], jit: Mapping[int, str] | None = None
) -> SteadyRuns:
    """Return the last runs that agree within 5 %, at least three.

    `values` are the rates of all runs in order, with None for a failed run. `jit` maps the number
    of a run to the log line of a kernel compilation during the run. If the last three usable runs
    do not agree, there is no value, and `needs_more` is set.
    """
    lines = jit or {}
    usable = [
        (at, value)
        for at, value in enumerate(values, 1)
        if value is not None and value > 0 and at not in lines
    ]
    tail = usable[-STEADY_RUNS:]
    if len(tail) < STEADY_RUNS or _spread(tail) > SPREAD_MAX:
        dropped = {
            at: _reason(value, at, lines, "not steady") for at, value in enumerate(values, 1)
        }
        return SteadyRuns((), None, dropped, needs_more=True)
    first = len(usable) - STEADY_RUNS
    while first > 0 and _spread(usable[first - 1 :]) <= SPREAD_MAX:
        first -= 1
    steady = usable[first:]
    kept = {at for at, _ in steady}
    dropped = {
        at: _reason(value, at, lines, "warm-up")
        for at, value in enumerate(values, 1)
        if at not in kept
    }
    return SteadyRuns(tuple(sorted(kept)), median(value for _, value in steady), dropped)


def _spread(runs: Sequence[tuple[int, float]]) -> float:
    rates = [value for _, value in runs]
    return (max(rates) - min(rates)) / median(rates)


def _reason(value: float | None, at: int, lines: Mapping[int, str], otherwise: str) -> str:
    if at in lines:
        line = lines[at][:200]
        return f"a kernel was compiled during the run: {line}"
    return otherwise if value else "failed"
