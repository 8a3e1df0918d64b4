"""Decides from the valid runs of a workload when it has been measured often enough.

The precision here is that of one launch. Verdicts are computed over launches, so an early stop
cannot make a verdict look more certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from math import exp, fsum, inf, lgamma, log, pi, sqrt, tan

from fleet_protos.trial_types import Measure

VOID_IN_ROW_MAX = 3


class Decision(Enum):
    """Says what follows after a run: another run, the end of the workload, or a failed trial."""

    MORE = "more"
    ENOUGH = "enough"
    GIVE_UP = "give_up"


def decide(
    values: Sequence[float], void_in_row: int, measure: Measure, warm_up: int = 0
) -> Decision:
    """Decide whether to measure the workload again.

    `values` holds the output tokens/s of the valid runs so far. `void_in_row` counts the void runs
    since the last valid run. The first `warm_up` values were not steady. At least `warm_up` more
    runs must follow them, and at least `measure.runs_min`.
    """
    if void_in_row >= VOID_IN_ROW_MAX:
        return Decision.GIVE_UP
    if len(values) >= measure.runs_max:
        return Decision.ENOUGH
    steady = values[warm_up:]
    if len(steady) < max(measure.runs_min, warm_up):
        return Decision.MORE
    precise = relative_half_width(steady, measure.confidence) <= measure.precision
    return Decision.ENOUGH if precise else Decision.MORE


def relative_half_width(values: Sequence[float], confidence: float) -> float:
    """Return half the width of the two-sided t-interval of the mean, divided by the mean.

    The result is infinite for fewer than two values or a mean that is not positive.
    """
    count = len(values)
    mean = fsum(values) / count if count else 0.0
    if count < 2 or not mean > 0:
        return inf
    deviation = sqrt(fsum((value - mean) ** 2 for value in values) / (count - 1))
    return t_quantile((1 + confidence) / 2, count - 1) * deviation / sqrt(count) / mean


def t_quantile(p: float, df: float) -> float:
    """Return the quantile of Student's t distribution: the t with P(T ≤ t) = p.

    `df` is the number of degrees of freedom. Raises ValueError unless 0 < p < 1 and df > 0.

    For one and two degrees of freedom there are closed forms. Otherwise bisection inverts the
    distribution function, which is computed with the regularised incomplete beta function (DLMF
    8.17, NIST). Tail and centre use different formulas, so that neither loses digits.
    """
    if not (0 < p < 1 and df > 0):
        raise ValueError(f"t_quantile needs 0 < p < 1 and df > 0, got p={p}, df={df}")
    if p < 0.5:
        return -t_quantile(1 - p, df)
    if df == 1:
        return tan(pi * (p - 0.5))
    if df == 2:
        return (2 * p - 1) * sqrt(2 / (4 * p * (1 - p)))
    return _bisect(p, df)


def _bisect(p: float, df: float) -> float:
    low, high = 0.0, 1.0
    while _is_below(high, p, df):
        low, high = high, high * 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _is_below(middle, p, df) else (low, middle)
    return (low + high) / 2


def _is_below(t: float, p: float, df: float) -> bool:
    """Return whether P(T ≤ t) < p, for t ≥ 0 and p ≥ 0.5."""
    share = t * t / (df + t * t)
    if p < 0.75:
        return regularised_beta(share, 0.5, df / 2) < 2 * p - 1
    return regularised_beta(df / (df + t * t), df / 2, 0.5) > 2 * (1 - p)


def regularised_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b) for 0 ≤ x ≤ 1.

    It is computed with the continued fraction DLMF 8.17.22, and with the symmetry DLMF 8.17.4 where
    this converges faster.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = exp(a * log(x) + b * log(1 - x) + lgamma(a + b) - lgamma(a) - lgamma(b))
    if x < (a + 1) / (a + b + 2):
        return front * _beta_fraction(x, a, b) / a
    return 1 - front * _beta_fraction(1 - x, b, a) / b


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of DLMF 8.17.22, computed by Lentz's method (Applied Optics 15,
    668, 1976).
    """
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 1000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for numerator in (even, odd):
            d = 1 + numerator * d
            c = 1 + numerator / c
            d = 1 / (d if abs(d) > tiny else tiny)
            c = c if abs(c) > tiny else tiny
            value *= d * c
        if abs(d * c - 1) < 1e-16:
            break
    return value
