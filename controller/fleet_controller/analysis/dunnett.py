"""Computes the critical value for several variants that are compared with one baseline.

With one variant it is Student's t. With more, it is the value of Dunnett (JASA 50, 1955): no
estimate of the family is further than that many standard errors from its true value, with the
given confidence. The one-sided value looks only at estimates that are too high.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_NORMAL_NODES = 40
_CHI_NODES = 64
_LOADING_STEPS = 500  # loadings are rounded down to these, so that most of a design are equal
_LARGEST_LOADING = 0.998
_TAIL = 1e-12  # of the chi distribution that the quadrature leaves out on each side
_ERROR = 1e-7


def dunnett_quantile(
    confidence: float,
    degrees: float,
    correlations: Sequence[Sequence[float]],
    *,
    one_sided: bool = False,
) -> float:
    """Return c with P(all |T_i| <= c) = confidence, or one-sided with P(all T_i <= c) = confidence.

    T is a multivariate t with `degrees` of freedom and the k × k matrix `correlations`. The
    calculation needs correlations of the form l_i·l_j. Others are replaced by the largest ones of
    that form that are nowhere above them, which makes the result slightly too large.
    """
    loadings = _loadings(correlations)
    return _quantile(confidence, degrees, tuple(sorted(loadings)), one_sided)


def _loadings(correlations: Sequence[Sequence[float]]) -> list[float]:
    """Return l_i such that l_i·l_j is at most the correlation of i and j."""
    count = len(correlations)
    if count == 1:
        return [0.0]
    pairs = {
        (i, j): max(float(correlations[i][j]), 0.0)
        for i in range(count)
        for j in range(count)
        if i < j
    }
    lowest, highest = min(pairs.values()), max(pairs.values())
    if lowest <= 0:
        return [0.0] * count
    if highest - lowest < _ERROR:
        return [min(math.sqrt(lowest), _LARGEST_LOADING)] * count
    loadings = _fit_loadings(count, pairs)
    excess = max(loadings[i] * loadings[j] / value for (i, j), value in pairs.items())
    scale = 1 / math.sqrt(max(excess, 1.0))
    return [
        math.floor(min(value * scale, _LARGEST_LOADING) * _LOADING_STEPS) / _LOADING_STEPS
        for value in loadings
    ]


def _fit_loadings(count: int, pairs: dict[tuple[int, int], float]) -> list[float]:
    """Return the l_i for which the logarithms of l_i·l_j fit those of the correlations best."""
    sums = [0.0] * count
    for (i, j), value in pairs.items():
        sums[i] += math.log(value)
        sums[j] += math.log(value)
    total = math.fsum(sums) / (2 * (count - 1))
    return [math.exp((own - total) / (count - 2)) for own in sums]


@lru_cache(maxsize=4096)
def _quantile(
    confidence: float, degrees: float, loadings: tuple[float, ...], one_sided: bool
) -> float:
    from scipy.optimize import brentq  # imported here: it takes half a second
    from scipy.special import stdtrit

    tails = 1 if one_sided else 2

    def single(error: float) -> float:
        return float(stdtrit(degrees, 1 - error / tails))

    lowest = single(1 - confidence)
    if len(loadings) == 1:
        return lowest
    highest = single((1 - confidence) / len(loadings)) * (1 + _ERROR)  # Bonferroni's bound
    inside = _probability_inside(degrees, loadings, one_sided)
    if inside(highest) <= confidence:
        return highest
    if inside(lowest) >= confidence:
        return lowest
    return float(brentq(lambda c: inside(c) - confidence, lowest, highest, xtol=_ERROR))


def _probability_inside(degrees: float, loadings: tuple[float, ...], one_sided: bool) -> Any:
    """Return the function c -> P(all |T_i| <= c), or c -> P(all T_i <= c).

    It integrates over the factor that all have in common (Gauss-Hermite) and over the chi
    distribution of the estimated deviation (Gauss-Legendre).
    """
    import numpy as np
    from scipy.special import gammaln, ndtr
    from scipy.stats import chi2

    nodes, weights = np.polynomial.hermite_e.hermegauss(_NORMAL_NODES)
    weights = weights / weights.sum()
    low, high = np.sqrt(chi2.ppf([_TAIL, 1 - _TAIL], degrees) / degrees)
    points, chi_weights = np.polynomial.legendre.leggauss(_CHI_NODES)
    deviations = low + (points + 1) * (high - low) / 2
    log_density = (
        math.log(2)
        + degrees / 2 * math.log(degrees / 2)
        - gammaln(degrees / 2)
        + (degrees - 1) * np.log(deviations)
        - degrees * deviations**2 / 2
    )
    chi_weights = chi_weights * np.exp(log_density)
    chi_weights = chi_weights / chi_weights.sum()
    groups = [(value, loadings.count(value)) for value in sorted(set(loadings))]

    def inside(c: float) -> float:
        product = np.ones((_NORMAL_NODES, _CHI_NODES))
        for loading, members in groups:
            spread = math.sqrt(1 - loading**2)
            centre = loading * nodes[:, None]
            limit = c * deviations[None, :]
            below = ndtr((centre + limit) / spread)
            if not one_sided:
                below -= ndtr((centre - limit) / spread)
            product *= below**members
        return float(weights @ product @ chi_weights)

    return inside
