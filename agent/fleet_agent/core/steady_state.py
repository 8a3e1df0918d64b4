"""Decides how many of a launch's first runs were still warm-up, and whether later runs are steady.

docs/statistics.md, section "Warm-up", explains the method, its reasons and its error rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import fsum, isfinite
from typing import Final

from fleet_agent.core.stop_rule import regularised_beta
from fleet_protos.metric_names import E2E_P50, OUTPUT_TOK_S
from fleet_protos.trial_types import Gate, GateEffect, Measure, RunResult, Workload, is_void

NOT_STEADY: Final = "not_steady"
SIGNIFICANCE: Final = 0.05  # at most this share of flat series shows a change
LEAST_VALUES: Final = 3  # with fewer, a change cannot be distinguished from noise
NEGLIGIBLE_SHARE: Final = 0.5  # of the requested precision: smaller changes do not matter
_ROUNDING: Final = 1e-9  # relative size of rounding errors


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A lasting change in a series of values, after the first `at` values. `ratio` is the mean
    after the change divided by the mean before.
    """

    at: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Steadiness:
    """Says how many of the first values are warm-up, and which change ended the warm-up.

    `is_steady` is true if enough values follow the warm-up to count as a steady state.
    """

    warm_up: int = 0
    change: LevelChange | None = None
    is_steady: bool = True


def judge_steadiness(values: Sequence[float], measure: Measure) -> Steadiness:
    """Split the values of a launch's valid runs into warm-up and steady state. The values are in
    the order of the runs.

    The runs after the last change are steady if their number is at least `measure.runs_min`, and at
    least the number of runs before the change.
    """
    begin, last = 0, None
    while (
        change := _find_change(values[begin:], measure.precision * NEGLIGIBLE_SHARE)
    ) is not None:
        begin += change.at
        last = replace(change, at=begin)
    return Steadiness(
        begin, last, last is None or len(values) - begin >= max(measure.runs_min, begin)
    )


def conclude_warm_up(values: Sequence[float], measure: Measure) -> tuple[int, tuple[Gate, ...]]:
    """Return how many of the first runs are warm-up, and a flag if the launch never became steady.

    The flag is set at the last run. A launch that never became steady keeps all its runs: to select
    some of them would be to choose the result. If the job sets the number of warm-up requests, no
    run is judged to be warm-up.
    """
    found = Steadiness() if measure.warmup_requests else judge_steadiness(values, measure)
    if found.change is None or found.is_steady or len(values) < measure.runs_max:
        return found.warm_up, ()
    runs, before, change = len(values), found.change.at, (found.change.ratio - 1) * 100
    message = (
        f"the launch never became steady in {runs} valid runs: its rate or latency still changed "
        f"by {change:+.1f} % after the first {before} runs; all runs count"
    )
    return 0, (Gate(NOT_STEADY, GateEffect.FLAG, message),)


def rate_of(run: RunResult) -> float | None:
    """Return the output tokens/s of a valid run. Return None if the run is void or has no usable
    rate.
    """
    rate = run.metrics.get(OUTPUT_TOK_S, 0.0)
    return rate if not is_void(run) and isfinite(rate) and rate > 0 else None


def level_of(metrics: Mapping[str, float], workload: Workload) -> float:
    """Return the value of a run that is tested for changes. This is the output tokens/s, but in an
    open loop, where the job sets the rate, the median latency in seconds.
    """
    latency_s = 0.0 if workload.concurrency else metrics.get(E2E_P50, 0.0)
    return latency_s if latency_s > 0 else metrics.get(OUTPUT_TOK_S, 0.0)


def _find_change(values: Sequence[float], negligible: float) -> LevelChange | None:
    """Find the change that splits the values best. Return None if noise could explain it.

    Each split into earlier and later values is tested by a two-sample t-test with pooled variance.
    The p-value of the best split is multiplied by the number of splits (Bonferroni) and compared
    with `SIGNIFICANCE`. A step smaller than `negligible` times the mean is ignored.
    """
    count = len(values)
    mean = fsum(values) / count if count else 0.0
    if count < LEAST_VALUES or not mean > 0:
        return None
    from_mean = [value - mean for value in values]
    total = fsum(distance * distance for distance in from_mean)
    # sum of squares between both parts, values before the split, later mean - earlier mean
    best: tuple[float, int, float] = (0.0, 0, 0.0)
    for at, before in enumerate(accumulate(from_mean[:-1]), start=1):
        weight = count / (at * (count - at))
        if abs(before * weight) > max(negligible, _ROUNDING) * mean:
            best = max(best, (before * before * weight, at, -before * weight))
    between, at, step = best
    if not at:
        return None
    within = max(0.0, 1 - between / total)  # df / (df + t²) of that split
    if regularised_beta(within, (count - 2) / 2, 0.5) * (count - 1) > SIGNIFICANCE:
        return None
    earlier = mean - step * (count - at) / count
    return LevelChange(at, (earlier + step) / earlier if earlier > 0 else 1.0)
