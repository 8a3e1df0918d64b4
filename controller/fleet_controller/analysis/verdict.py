"""Gives the verdict on one ratio, and says what would resolve an inconclusive row."""

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
    """What the data says about a variant compared with the baseline, by the rules of
    docs/statistics.md.
    """

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    EQUIVALENT = "EQUIVALENT"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of every row. `confidence` is that of each interval. `margin` is the relative
    difference that does not matter.
    """

    confidence: float = 0.95
    margin: float = 0.02


@dataclass(frozen=True, slots=True)
class Needs:
    """What would resolve an inconclusive row: the additional launches of each side, the wall
    minutes for all of these launches (None if unknown), and the reason.
    """

    launches: int
    minutes: float | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and its reason in words. If the verdict is INCONCLUSIVE, `needs` says what would
    resolve it. `needs` is None if launches would not help.
    """

    verdict: Verdict
    reason: str
    needs: Needs | None = None


def decide_verdict(interval: Interval, margin: float, higher_is_better: bool) -> Verdict:
    """Return EQUIVALENT if the interval is within the margin. Else return FASTER or SLOWER if the
    interval excludes 1. Else return INCONCLUSIVE.

    The margin m is symmetric on the log scale: it reaches from 1/(1+m) to 1+m.
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
    """Return the verdict on a ratio that has an interval."""
    verdict = decide_verdict(estimate.interval, question.margin, higher_is_better)
    percent = f"±{question.margin * 100:g} %"
    if verdict == Verdict.EQUIVALENT:
        return Judgement(verdict, f"the whole interval is within {percent}")
    if verdict != Verdict.INCONCLUSIVE:
        return Judgement(verdict, "the interval excludes a ratio of 1")
    reason = f"the interval includes a ratio of 1 and reaches beyond {percent}"
    if (estimate.open_below or estimate.open_above) and not _target_half_width(
        estimate, question
    ) > 0:
        left = f"{math.expm1(max(estimate.open_below, estimate.open_above)) * 100:.1f} %"
        return Judgement(
            verdict,
            (
                f"{reason}: the searches leave up to {left} open; use a smaller `within`, because "
                "more launches do not help"
            ),
        )
    return Judgement(verdict, reason, launches_needed(estimate, question, minutes_per_launch))


def launches_needed(
    estimate: LogRatio, question: Question, minutes_per_launch: float | None
) -> Needs:
    """Return how many additional launches of each side resolve the row if estimate and noise stay
    the same.

    A row is resolved when the half-width excludes 1 (it is below |log ratio|) or fits the margin
    (it is below log(1+m) - |log ratio|).
    """
    more = more_launches(estimate.half_width, _target_half_width(estimate, question))
    return _make_needs(more, minutes_per_launch, "")


def _target_half_width(estimate: LogRatio, question: Question) -> float:
    """Return the half-width over launches that resolves the row. The result is 0 or less if no
    half-width resolves it.
    """
    low, high = estimate.log_ratio - estimate.open_below, estimate.log_ratio + estimate.open_above
    return max(low, -high, math.log1p(question.margin) - max(high, -low))


def judge_without_interval(
    values: list[float],
    references: list[float],
    question: Question,
    minutes_per_launch: float | None,
) -> Judgement:
    """Return the verdict INCONCLUSIVE with its reason, because one side has fewer than two
    launches.
    """
    fewest = min(len(values), len(references))
    if fewest == 0:
        which = "this variant" if not values else "the baseline"
        needs = _make_needs(3, minutes_per_launch, "three launches give a first interval")
        return Judgement(Verdict.INCONCLUSIVE, f"no valid launch of {which}", needs)
    noisy = max((values, references), key=len)
    reason = "one launch gives no interval: runs of one launch do not show how much launches differ"
    if len(noisy) < 2:
        return Judgement(
            Verdict.INCONCLUSIVE,
            reason,
            _make_needs(2, minutes_per_launch, "three launches of each side give a first interval"),
        )
    total = launches_for_precision(noisy, question.margin, question.confidence)
    percent = f"±{question.margin * 100:g} %"
    message = (
        f"about {total} launches of each side give a mean within {percent} at the observed noise"
        if total
        else ""
    )
    return Judgement(
        Verdict.INCONCLUSIVE,
        reason,
        _make_needs(None if total is None else max(total - fewest, 1), minutes_per_launch, message),
    )


def _make_needs(more: int | None, minutes_per_launch: float | None, message: str) -> Needs:
    launches = LAUNCHES_CAP if more is None else more
    if more is None:
        message = (
            f"more than {LAUNCHES_CAP} launches would be needed, because the launches are too "
            "noisy; look for the source of the noise"
        )
    minutes = None if minutes_per_launch is None else 2 * launches * minutes_per_launch
    return Needs(launches, minutes, message)
