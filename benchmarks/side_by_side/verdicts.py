"""Judges two clients that measured one server several times: their difference, its noise, and what
explains it.

The noise of a difference is the half width of its confidence interval: with k repeats each and s²
the variance of a client's own repeats,

    noise = t × 1.25 × √(s²(ours) / k + s²(theirs) / k)

t is Student's quantile at 2k − 2 degrees of freedom, chosen so that one table in a hundred has a
false alarm in any of its rows (Bonferroni). A median spreads 1.25 times as much as a mean. Counts
have no noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scipy import stats

from benchmarks.side_by_side.figures import COUNTS, NAMES, RATE, Figures

FALSE_ALARM_RATE: Final = 0.01  # of tables
MEDIAN_SPREAD: Final = math.sqrt(math.pi / 2)
# A client is delayed more on a machine with the server under test than with the truth server.
CONTROL_FACTOR: Final = 2.0

MAX_RELATIVE_NOISE: Final = 0.5  # with more noise, a small difference proves nothing

EQUAL, WITHIN, EXPLAINED, UNEXPLAINED, TOO_NOISY = (
    "equal",
    "within noise",
    "explained",
    "UNEXPLAINED",
    "too noisy to tell",
)


@dataclass(frozen=True, slots=True)
class Control:
    """How the two clients differ under the same load on the truth server, and how far each is from
    its records.

    In the unit of the figure; for the rate all are relative.
    """

    difference: float
    noise: float
    ours_error: float
    theirs_error: float


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    `ours`: as the product reports it, NaN if it does not. The difference is of medians by the same
    definition.
    """

    name: str
    ours: float
    ours_by_theirs: float
    theirs: float
    noise: float
    control: Control | None
    verdict: str

    @property
    def difference(self) -> float:
        """Theirs − ours, both by their definition."""
        return self.theirs - self.ours_by_theirs


def half_width(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the noise of the difference of medians.

    Raises ValueError for fewer than two repeats, or different numbers of repeats.
    """
    if len(ours) != len(theirs) or len(ours) < 2:
        raise ValueError(
            f"noise needs at least two repeats, and as many of each client; got {len(ours)} and"
            f" {len(theirs)}"
        )
    alarms = FALSE_ALARM_RATE / (len(NAMES) - len(COUNTS))
    quantile = float(stats.t.ppf(1 - alarms / 2, 2 * len(ours) - 2))
    return (
        quantile
        * MEDIAN_SPREAD
        * math.sqrt((statistics.variance(ours) + statistics.variance(theirs)) / len(ours))
    )


def control(
    name: str, ours: Sequence[tuple[Figures, Figures]], theirs: Sequence[tuple[Figures, Figures]]
) -> Control:
    """Return the control of a figure from (measured, true) figures of each run on the truth
    server.
    """
    unit = statistics.median(true[name] for _, true in ours) if name == RATE else 1.0
    of_ours = [one[name] / unit for one, _ in ours]
    of_theirs = [one[name] / unit for one, _ in theirs]
    errors = [
        statistics.median((measured[name] - true[name]) / unit for measured, true in runs)
        for runs in (ours, theirs)
    ]
    return Control(
        statistics.median(of_theirs) - statistics.median(of_ours),
        half_width(of_ours, of_theirs),
        *errors,
    )


def rows(
    ours: Sequence[tuple[Figures, Figures]],
    theirs: Sequence[Figures],
    controls: Mapping[str, Control],
) -> list[Row]:
    """Return a row for each figure; `ours` is (by our definitions, by theirs) of each repeat."""
    return [_row(name, ours, theirs, controls.get(name)) for name in NAMES]


def _row(
    name: str,
    ours: Sequence[tuple[Figures, Figures]],
    theirs: Sequence[Figures],
    known: Control | None,
) -> Row:
    own, by_theirs = [one.get(name, math.nan) for one, _ in ours], [one[name] for _, one in ours]
    other = [one[name] for one in theirs]
    noise = 0.0 if name in COUNTS else half_width(by_theirs, other)
    medians = statistics.median(own), statistics.median(by_theirs), statistics.median(other)
    if name in COUNTS:
        return Row(name, *medians, noise, None, EQUAL if by_theirs == other else UNEXPLAINED)
    return Row(name, *medians, noise, known, verdict(name, medians[1], medians[2], noise, known))


def verdict(name: str, ours: float, theirs: float, noise: float, known: Control | None) -> str:
    """Return the verdict on one difference.

    It is within noise, explained by how the clients differ on the truth server, or unexplained.
    With noise above half the figure, a difference within the noise is too noisy to tell.
    """
    difference = theirs - ours
    if abs(difference) <= noise:
        return WITHIN if noise <= MAX_RELATIVE_NOISE * abs(ours) else TOO_NOISY
    if known is None:
        return UNEXPLAINED
    unit = ours if name == RATE else 1.0
    expected, least = known.difference * unit, abs(known.noise * unit)
    low, high = sorted((0.0, CONTROL_FACTOR * expected))
    return EXPLAINED if low - noise - least <= difference <= high + noise + least else UNEXPLAINED
