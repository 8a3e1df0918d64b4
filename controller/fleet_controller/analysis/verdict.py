"""Gives the verdict on one ratio, and says what would resolve an inconclusive row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from fleet_controller.analysis.ratio_estimates import Prospect, RatioEstimate
from fleet_controller.analysis.statistics import (
    LAUNCHES_CAP,
    Interval,
    first_count,
    launches_for_precision,
)

RULE = 2  # of verdicts; docs/statistics.md describes it and the one before
LAUNCHES_FOR_VERDICT = 3  # of each side; with fewer there is an interval, but no verdict
_POWER = 0.8
_NOISE_SHARE = 0.7  # confidence that the noise is not above the one that a plan assumes


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
    """What is asked of every row.

    `confidence` is that of all verdicts together. `margin` is the relative difference that does
    not matter. `cells` is the number of judged cells (host, workload, metric), and `looks` how
    often they are judged; the error is divided among them.
    """

    confidence: float = 0.95
    margin: float = 0.02
    cells: int = 1
    looks: int = 1

    @property
    def row_confidence(self) -> float:
        """Return the confidence of the intervals of one cell."""
        return 1 - (1 - self.confidence) / (self.cells * self.looks)

    @property
    def log_margin(self) -> float:
        """Return the margin on the log scale. There it is symmetric: 1/(1+m) … 1+m."""
        return math.log1p(self.margin)


@dataclass(frozen=True, slots=True)
class OpenEnds:
    """How much the ends of an interval are extended on the log scale, because the values
    themselves are only known between bounds. More launches do not change this.
    """

    below: float = 0.0
    above: float = 0.0

    def against(self, reference: OpenEnds) -> OpenEnds:
        """Return the open ends of this difference minus another."""
        return OpenEnds(self.below + reference.above, self.above + reference.below)


CLOSED = OpenEnds()


@dataclass(frozen=True, slots=True)
class Needs:
    """What would resolve a row, in additional launches of both sides.

    `launches` give a verdict with 80 % power if the true difference is the one seen.
    `launches_sure` give one whatever the difference is; None if not even 1000 do. `which` is
    `blocks` if all variants of the cell should be launched, `pair` if only the variant and the
    baseline should. `minutes` is the wall time of `launches`, None if unknown.
    """

    launches: int
    minutes: float | None
    message: str = ""
    launches_sure: int | None = None
    which: str = "pair"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and its reason in words. If the verdict is INCONCLUSIVE, `needs` says what would
    resolve it. `needs` is None if launches would not help.
    """

    verdict: Verdict
    reason: str
    needs: Needs | None = None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What further launches of a row would cost. `minutes` is the wall time of one launch, None if
    unknown. `variants` are launched in a whole block of the cell.
    """

    minutes: float | None = None
    variants: int = 2
    in_blocks: bool = False

    def cost(self, launches: int) -> float | None:
        """Return the wall minutes of so many launches of both sides."""
        sides = self.variants if self.in_blocks else 2
        return None if self.minutes is None else sides * launches * self.minutes

    @property
    def which(self) -> str:
        """Return `blocks` or `pair`, as in Needs."""
        return "blocks" if self.in_blocks else "pair"


def ratio_interval(
    estimate: RatioEstimate, confidence: float, ends: OpenEnds = CLOSED, *, one_sided: bool = False
) -> Interval:
    """Return the interval of the logarithm of the ratio, in which each end may be wrong with the
    whole error if it is `one_sided`.
    """
    half = estimate.half_width(confidence, one_sided=one_sided)
    return Interval(
        estimate.difference - half - ends.below, estimate.difference + half + ends.above
    )


def verdict_on(
    estimate: RatioEstimate, question: Question, higher_is_better: bool, ends: OpenEnds = CLOSED
) -> Verdict:
    """Return FASTER or SLOWER if the interval excludes a ratio of 1, else INCONCLUSIVE."""
    interval = ratio_interval(estimate, question.row_confidence, ends)
    if interval.low > 0:
        return Verdict.FASTER if higher_is_better else Verdict.SLOWER
    if interval.high < 0:
        return Verdict.SLOWER if higher_is_better else Verdict.FASTER
    return Verdict.INCONCLUSIVE


def judge_ratio(
    estimate: RatioEstimate,
    verdict: Verdict,
    question: Question,
    outlook: Outlook,
    ends: OpenEnds = CLOSED,
) -> Judgement:
    """Return the verdict with its reason and, if it is INCONCLUSIVE, what would resolve it."""
    percent = f"±{question.margin * 100:g} %"
    if verdict == Verdict.EQUIVALENT:
        return Judgement(verdict, f"the ratio is certainly within {percent}")
    if verdict != Verdict.INCONCLUSIVE:
        return Judgement(verdict, "the interval excludes a ratio of 1")
    reason = f"the interval includes a ratio of 1 and reaches beyond {percent}"
    if not _can_resolve(estimate, question, ends):
        left = f"{math.expm1(max(ends.below, ends.above)) * 100:.1f} %"
        return Judgement(
            verdict,
            f"{reason}: the searches leave up to {left} open; use a smaller `within`, because "
            "more launches do not help",
        )
    return Judgement(verdict, reason, launches_needed(estimate, question, outlook, ends))


def _can_resolve(estimate: RatioEstimate, question: Question, ends: OpenEnds) -> bool:
    low, high = estimate.difference - ends.below, estimate.difference + ends.above
    return low > 0 or high < 0 or max(high, -low) < question.log_margin


def launches_needed(
    estimate: RatioEstimate, question: Question, outlook: Outlook, ends: OpenEnds = CLOSED
) -> Needs:
    """Return what resolves the row, if the true difference is the one seen and the noise is at the
    upper limit of its one-sided 70 % interval.
    """

    def prospect(launches: int) -> Prospect:
        return Prospect(launches, outlook.in_blocks, _NOISE_SHARE)

    def is_likely(launches: int) -> bool:
        return resolution_power(estimate, question, prospect(launches), ends) >= _POWER

    def is_sure(launches: int) -> bool:
        later = prospect(launches)
        widths = sum(
            estimate.half_width(question.row_confidence, later, one_sided=one_sided)
            for one_sided in (False, True)
        )
        return widths + ends.below + ends.above <= question.log_margin

    more = first_count(is_likely, 1, LAUNCHES_CAP)
    sure = first_count(is_sure, 1, LAUNCHES_CAP)
    return make_needs(more, outlook, "", sure)


def resolution_power(
    estimate: RatioEstimate, question: Question, prospect: Prospect, ends: OpenEnds = CLOSED
) -> float:
    """Return the probability of a verdict other than INCONCLUSIVE if the difference that was seen
    is the true one.
    """
    error = estimate.standard_error(prospect)
    half = estimate.half_width(question.row_confidence, prospect)
    slack = question.log_margin - estimate.half_width(
        question.row_confidence, prospect, one_sided=True
    )
    low, high = half + ends.below, -half - ends.above  # beyond these the verdict is clear
    equal_low, equal_high = ends.below - slack, slack - ends.above

    def below(difference: float) -> float:
        """Return the probability that the next estimate is below this difference."""
        distance = difference - estimate.difference
        if error <= 0:
            return float(distance > 0)
        return 0.5 * math.erfc(-distance / error / math.sqrt(2))

    if equal_low < equal_high:
        within = below(min(equal_high, low)) - below(max(equal_low, high))
        return below(high) + (1 - below(low)) + max(within, 0.0)
    return below(high) + 1 - below(low)


def judge_without_verdict(
    values: list[float], references: list[float], question: Question, outlook: Outlook
) -> Judgement:
    """Return the judgement if one side has too few launches: INCONCLUSIVE, with the reason."""
    fewest = min(len(values), len(references))
    if fewest == 0:
        which = "this variant" if not values else "the baseline"
        needs = make_needs(3, outlook, "three launches give a first interval")
        return Judgement(Verdict.INCONCLUSIVE, f"no valid launch of {which}", needs)
    if fewest > 1:
        reason = f"{fewest} launches are too few for a verdict, which needs {LAUNCHES_FOR_VERDICT}"
        return Judgement(
            Verdict.INCONCLUSIVE, reason, make_needs(LAUNCHES_FOR_VERDICT - fewest, outlook)
        )
    noisy = max((values, references), key=len)
    reason = "one launch gives no interval: runs of one launch do not show how much launches differ"
    if len(noisy) < 2:
        return Judgement(
            Verdict.INCONCLUSIVE,
            reason,
            make_needs(2, outlook, "three launches of each give a first interval"),
        )
    total = launches_for_precision(noisy, question.margin, question.confidence)
    message = (
        f"about {total} launches of each give a mean within ±{question.margin * 100:g} % at "
        "the observed noise"
        if total
        else ""
    )
    more = None if total is None else max(total - fewest, LAUNCHES_FOR_VERDICT - fewest)
    return Judgement(Verdict.INCONCLUSIVE, reason, make_needs(more, outlook, message))


def make_needs(
    more: int | None, outlook: Outlook, message: str = "", sure: int | None = None
) -> Needs:
    """Return the needs for so many launches of both sides; None stands for more than the cap."""
    launches = LAUNCHES_CAP if more is None else more
    if more is None:
        message = (
            f"more than {LAUNCHES_CAP} launches would be needed, because the launches are too "
            "noisy; look for the source of the noise"
        )
    return Needs(launches, outlook.cost(launches), message, sure, outlook.which)
