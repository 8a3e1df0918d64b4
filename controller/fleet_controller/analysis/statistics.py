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


def t_quantile(confidence: float, degrees: float) -> float:
    """Return the two-sided quantile of Student's t: P(|T| <= result) = confidence."""
    from scipy.special import (
        stdtrit,  # imported here: it takes half a second, and few commands need it
    )

    return float(stdtrit(degrees, 0.5 + confidence / 2))


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean of at least one value, also of values near the largest float."""
    scale = max(map(abs, values)) or 1.0
    if math.isinf(scale):
        return math.fsum(values)
    return math.fsum(value / scale for value in values) / len(values) * scale


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean of at least one value above 0."""
    if len(values) == 1:
        return values[0]
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def standard_deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation (n - 1) of at least two values."""
    centre = mean(values)
    scale = max(abs(value - centre) for value in values) or 1.0
    squares = math.fsum(((value - centre) / scale) ** 2 for value in values)
    return scale * math.sqrt(squares / (len(values) - 1))


def mean_interval(values: Sequence[float], confidence: float) -> Interval | None:
    """Return Student's t-interval of the mean of positive values over independent launches, or None
    for fewer than two. The interval is cut at 0.
    """
    if len(values) < 2:
        return None
    half = (
        t_quantile(confidence, len(values) - 1)
        * standard_deviation(values)
        / math.sqrt(len(values))
    )
    return Interval(max(mean(values) - half, 0.0), mean(values) + half)


def launches_for_precision(
    values: Sequence[float], precision: float, confidence: float, cap: int = LAUNCHES_CAP
) -> int | None:
    """Return the total number of launches that give one mean within ± `precision` (relative) at the
    noise of `values`. Return None if more than `cap` additional launches are needed.
    """
    relative = standard_deviation(values) / mean(values)

    def is_precise(launches: int) -> bool:
        half = t_quantile(confidence, launches - 1) * relative / math.sqrt(launches)
        return half <= precision

    return first_count(is_precise, 2, cap)


def first_count(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the smallest count from `low` on for which `holds` is true, or None if it is not true
    of `high`. Once true, it stays true.
    """
    if not holds(high):
        return None
    step = 1
    while low + step < high and not holds(low + step - 1):
        low, step = low + step, step * 2
    high = min(low + step - 1, high)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
