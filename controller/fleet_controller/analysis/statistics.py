"""Computes intervals: of means over launches, and of ratios on the log scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LAUNCHES_CAP = 1000  # nobody launches a 600 GB model more often than this to settle a question


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval with both ends in the unit of the estimate."""

    low: float
    high: float

    def is_inside(self, low: float, high: float) -> bool:
        """Return True if the whole interval is within [low, high]."""
        return low <= self.low and self.high <= high


@dataclass(frozen=True, slots=True)
class LogRatio:
    """A ratio estimated on the log scale, and how its half-width shrinks with more launches of both
    sides.

    `half_width(k)` is the half-width on the log scale after k more launches of each side at the
    observed noise. `open_below` and `open_above` extend the two ends on that scale, because the
    values themselves are only known between bounds. More launches do not change these extensions.
    """

    log_ratio: float
    half_width: Callable[[int], float]
    open_below: float = 0.0
    open_above: float = 0.0

    @property
    def ratio(self) -> float:
        """The point estimate, without a unit."""
        return math.exp(self.log_ratio)

    @property
    def interval(self) -> Interval:
        """The interval of the ratio, without a unit."""
        now = self.half_width(0)
        return Interval(
            math.exp(self.log_ratio - now - self.open_below),
            math.exp(self.log_ratio + now + self.open_above),
        )


def t_quantile(confidence: float, degrees: float) -> float:
    """Return the two-sided quantile of Student's t: P(|T| <= result) = confidence."""
    from scipy.special import (
        stdtrit,  # imported here: it takes half a second, and few commands need it
    )

    return float(stdtrit(degrees, 0.5 + confidence / 2))


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean of at least one value."""
    return math.fsum(values) / len(values)


def standard_deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation (n - 1) of at least two values."""
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))


def mean_interval(values: Sequence[float], confidence: float) -> Interval | None:
    """Return Student's t-interval of the mean over independent launches, or None for fewer than two
    launches. All metrics are rates, times or counts, so the interval is cut at 0.
    """
    if len(values) < 2:
        return None
    half = (
        t_quantile(confidence, len(values) - 1)
        * standard_deviation(values)
        / math.sqrt(len(values))
    )
    return Interval(max(0.0, mean(values) - half), mean(values) + half)


def paired_ratio(pairs: Sequence[tuple[float, float]], confidence: float) -> LogRatio | None:
    """Return the ratio first/second of launches that are paired by block, with a t-interval over
    log differences. Return None for fewer than two pairs.
    """
    if len(pairs) < 2:
        return None
    differences = [math.log(value / reference) for value, reference in pairs]
    deviation, count = standard_deviation(differences), len(differences)
    return LogRatio(
        mean(differences),
        lambda more: t_quantile(confidence, count + more - 1) * deviation / math.sqrt(count + more),
    )


def welch_ratio(
    values: Sequence[float], references: Sequence[float], confidence: float
) -> LogRatio | None:
    """Return the ratio of the geometric means of two independent sets of launches, with Welch's
    interval on logs. Return None if a side has fewer than two launches.

    The degrees of freedom are those of Satterthwaite (Biometrics Bulletin 2, 1946).
    """
    if min(len(values), len(references)) < 2:
        return None
    logs, reference_logs = (
        [math.log(value) for value in values],
        [math.log(value) for value in references],
    )
    variances = standard_deviation(logs) ** 2, standard_deviation(reference_logs) ** 2

    def half_width(more: int) -> float:
        counts = len(values) + more, len(references) + more
        parts = [variance / count for variance, count in zip(variances, counts, strict=True)]
        spread = math.fsum(parts)
        if spread <= 0:
            return 0.0
        # Divide each share of the spread by its own degrees: squares of tiny numbers could
        # underflow.
        degrees = 1 / math.fsum(
            (part / spread) ** 2 / (count - 1) for part, count in zip(parts, counts, strict=True)
        )
        return t_quantile(confidence, degrees) * math.sqrt(spread)

    return LogRatio(mean(logs) - mean(reference_logs), half_width)


def more_launches(
    half_width: Callable[[int], float], target: float, cap: int = LAUNCHES_CAP
) -> int | None:
    """Return the smallest number of additional launches, at least one, after which `half_width` is
    at most `target`. Return None if that number is above `cap`.
    """
    if half_width(cap) > target:
        return None
    low, high = 0, 1
    while half_width(min(high, cap)) > target:
        low, high = high, high * 2
    high = min(high, cap)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if half_width(middle) > target else (low, middle)
    return high


def launches_for_precision(
    values: Sequence[float], precision: float, confidence: float, cap: int = LAUNCHES_CAP
) -> int | None:
    """Return the total number of launches that give one mean within ± `precision` (relative) at the
    noise of `values`. Return None if more than `cap` additional launches are needed.
    """
    relative = standard_deviation(values) / mean(values)

    def half_width(more: int) -> float:
        return t_quantile(confidence, 1 + more) * relative / math.sqrt(2 + more)

    if half_width(0) <= precision:
        return 2
    more = more_launches(half_width, precision, cap)
    return None if more is None else 2 + more
