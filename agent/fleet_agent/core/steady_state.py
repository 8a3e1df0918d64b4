"""Owns whether the runs of a launch are steady: how many of the first ones were still warm-up, and
when there is no saying. Pure.

The method, its reasons and its error rates: docs/statistics.md, "Warm-up".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import fsum, isfinite
from typing import Final

from fleet_agent.core.stop_rule import regularised_beta
from fleet_protos.metric_names import E2E_P50, OUTPUT_TOK_S
from fleet_protos.trial_types import Gate, GateEffect, Measure, RunResult, Workload

NOT_STEADY: Final = "not_steady"
SIGNIFICANCE: Final = 0.05  # of a flat series: how often at most a change is seen in it
LEAST_VALUES: Final = 3  # below, nothing tells a change from noise
NEGLIGIBLE_SHARE: Final = (
    0.5  # of the precision asked for: a change that is smaller does not matter
)
_ROUNDING: Final = 1e-9  # relative: what rounding alone makes


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A change of level: `at` values are before it; `ratio` is the level from it on by the level
    before.
    """

    at: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Steadiness:
    """`warm_up` of the first values are not steady, by the `change` that ends them. `is_steady`:
    what follows is enough of a state.
    """

    warm_up: int = 0
    change: LevelChange | None = None
    is_steady: bool = True


def judge_steadiness(values: Sequence[float], measure: Measure) -> Steadiness:
    """How the levels of a launch's valid runs, in their order, fall into warm-up and steady state.

    What follows the last change is steady when it is as long as `measure.runs_min` and as what is
    before it.
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
    """What the newest of these runs tells: how many of the first are warm-up, and the flag of a
    last one that leaves the launch unsteady.

    A launch that never became steady keeps all its runs: to pick some of them would be to choose
    the result. Where the job fixes the warm-up nothing is judged.
    """
    found = Steadiness() if measure.warmup_requests else judge_steadiness(values, measure)
    if found.change is None or found.is_steady or len(values) < measure.runs_max:
        return found.warm_up, ()
    change = f"the level still changed by {(found.change.ratio - 1) * 100:+.1f} % after {found.change.at} of them"
    return 0, (
        Gate(
            NOT_STEADY,
            GateEffect.FLAG,
            f"never steady in {len(values)} valid runs: {change}; all of them count",
        ),
    )


def rate_of(run: RunResult) -> float | None:
    """Output tokens/s of a run that counts; None for a void one, or one without a usable rate:
    neither ever becomes a number.
    """
    rate = run.metrics.get(OUTPUT_TOK_S, 0.0)
    return rate if not run.void and isfinite(rate) and rate > 0 else None


def level_of(metrics: Mapping[str, float], workload: Workload) -> float:
    """What is looked at: the rate, or the median latency where the job gives the rate and the
    server has no part in it.
    """
    latency_s = 0.0 if workload.concurrency else metrics.get(E2E_P50, 0.0)
    return latency_s if latency_s > 0 else metrics.get(OUTPUT_TOK_S, 0.0)


def _find_change(values: Sequence[float], negligible: float) -> LevelChange | None:
    """The change of level that parts the values best, when noise alone would show one as good in
    fewer than `SURE` of all series.

    Each way to cut them in two is a two-sample t-test with pooled variance; as the best of them is
    taken, its p is multiplied by their number (Bonferroni).
    """
    count = len(values)
    mean = fsum(values) / count if count else 0.0
    if count < LEAST_VALUES or not mean > 0:
        return None
    from_mean = [value - mean for value in values]
    total = fsum(distance * distance for distance in from_mean)
    best: tuple[float, int, float] = (
        0.0,
        0,
        0.0,
    )  # sum of squares between both parts, values before the cut, later mean - earlier mean
    for at, before in enumerate(accumulate(from_mean[:-1]), start=1):
        weight = count / (at * (count - at))
        if abs(before * weight) > max(negligible, _ROUNDING) * mean:
            best = max(best, (before * before * weight, at, -before * weight))
    between, at, step = best
    if not at:
        return None
    within = max(0.0, 1 - between / total)  # df / (df + t²) of that cut
    if regularised_beta(within, (count - 2) / 2, 0.5) * (count - 1) > SIGNIFICANCE:
        return None
    earlier = mean - step * (count - at) / count
    return LevelChange(at, (earlier + step) / earlier if earlier > 0 else 1.0)
