"""Owns the verdict on one ratio and what would resolve it. Knows no jobs, no tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from fleet_controller.analysis.statistics import (
    LAUNCHES_CAP,
    Interval,
    LogRatio,
    launches_for_precision,
    more_launches,
)


class Verdict(StrEnum):
    """What the data says of a variant against the baseline; the rules are those of
    docs/statistics.md.
    """

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    EQUIVALENT = "EQUIVALENT"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of every row: `confidence` of each interval, and `margin`, the relative
    difference that does not matter.
    """

    confidence: float = 0.95
    margin: float = 0.02


@dataclass(frozen=True, slots=True)
class Needs:
    """What would resolve a row: additional launches of both sides, wall minutes for them (None:
    unknown), and why.
    """

    launches: int
    minutes: float | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its reason in words and, when it is INCONCLUSIVE, what it needs (None: no
    launches would help).
    """

    verdict: Verdict
    reason: str
    needs: Needs | None = None


def decide_verdict(interval: Interval, margin: float, higher_is_better: bool) -> Verdict:
    """EQUIVALENT before FASTER or SLOWER before INCONCLUSIVE; `margin` is symmetric on the log
    scale: 1/(1+m) … 1+m.
    """
    if interval.is_inside(1 / (1 + margin), 1 + margin):
        return Verdict.EQUIVALENT
    if interval.low > 1:
        return Verdict.FASTER if higher_is_better else Verdict.SLOWER
    if interval.high < 1:
        return Verdict.SLOWER if higher_is_better else Verdict.FASTER
    return Verdict.INCONCLUSIVE


def judge_ratio(
    estimate: LogRatio, question: Question, higher_is_better: bool, minutes_per_launch: float | None
) -> Judgement:
    """The verdict of a ratio that has an interval."""
    verdict = decide_verdict(estimate.interval, question.margin, higher_is_better)
    percent = f"±{question.margin * 100:g} %"
    if verdict == Verdict.EQUIVALENT:
        return Judgement(verdict, f"the whole interval lies within {percent}")
    if verdict != Verdict.INCONCLUSIVE:
        return Judgement(verdict, "the interval excludes no difference")
    reason = f"the interval holds no difference and reaches beyond {percent}"
    if (estimate.open_below or estimate.open_above) and not _target(estimate, question) > 0:
        left = f"{math.expm1(max(estimate.open_below, estimate.open_above)) * 100:.1f} %"
        return Judgement(
            verdict,
            f"{reason}: the searches leave up to {left} open, which a smaller `within` closes and more launches do not",
        )
    return Judgement(verdict, reason, needs_of(estimate, question, minutes_per_launch))


def needs_of(estimate: LogRatio, question: Question, minutes_per_launch: float | None) -> Needs:
    """Launches more, of both sides, that resolve it if estimate and noise stay what they are.

    Resolved means a half-width that excludes 1 (below |log ratio|) or fits the margin (below
    log(1+m) - |log ratio|).
    """
    more = more_launches(estimate.half_width, _target(estimate, question))
    return _needs(more, minutes_per_launch, "")


def _target(estimate: LogRatio, question: Question) -> float:
    """The half-width over launches that resolves it; 0 or less where none does."""
    low, high = estimate.log_ratio - estimate.open_below, estimate.log_ratio + estimate.open_above
    return max(low, -high, math.log1p(question.margin) - max(high, -low))


def judge_without_interval(
    values: list[float],
    references: list[float],
    question: Question,
    minutes_per_launch: float | None,
) -> Judgement:
    """The answer when one side has fewer than two launches: never more than INCONCLUSIVE, and why."""
    fewest = min(len(values), len(references))
    if fewest == 0:
        which = "this variant" if not values else "the baseline"
        needs = _needs(3, minutes_per_launch, "three launches give a first interval")
        return Judgement(Verdict.INCONCLUSIVE, f"no valid launch of {which}", needs)
    noisy = max((values, references), key=len)
    reason = "one launch has no interval: launches differ, and runs of one launch do not show by how much"
    if len(noisy) < 2:
        return Judgement(
            Verdict.INCONCLUSIVE,
            reason,
            _needs(2, minutes_per_launch, "three launches of each give a first interval"),
        )
    total = launches_for_precision(noisy, question.margin, question.confidence)
    message = (
        f"about {total} launches of each put a mean within ±{question.margin * 100:g} % at the noise seen"
        if total
        else ""
    )
    return Judgement(
        Verdict.INCONCLUSIVE,
        reason,
        _needs(None if total is None else max(total - fewest, 1), minutes_per_launch, message),
    )


def _needs(more: int | None, minutes_per_launch: float | None, message: str) -> Needs:
    launches = LAUNCHES_CAP if more is None else more
    if more is None:
        message = f"more than {LAUNCHES_CAP} launches: too noisy to resolve by launching; look for the source of the noise"
    minutes = None if minutes_per_launch is None else 2 * launches * minutes_per_launch
    return Needs(launches, minutes, message)
