"""Estimates of one variant's ratio to the baseline, and how their intervals shrink with launches.

All widths are on the log scale: a half-width of 0.02 is about ±2 %.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from fleet_controller.analysis.cell_model import CellModel, LaunchValue, fit_cell
from fleet_controller.analysis.dunnett import dunnett_quantile
from fleet_controller.analysis.statistics import mean, standard_deviation, t_quantile

PAIRED, UNPAIRED, BRIDGED = "paired", "unpaired", "bridged"


@dataclass(frozen=True, slots=True)
class Prospect:
    """What is assumed of a measurement with more launches.

    `launches` are added to both sides. `in_blocks` says whether the other variants of the cell are
    launched as well. With `noise_share` p, the noise is at the upper limit of its one-sided
    interval of that confidence; None keeps the noise that was seen.
    """

    launches: int = 0
    in_blocks: bool = True
    noise_share: float | None = None

    def noise(self, degrees: float) -> float:
        """Return the factor on a deviation that was estimated with so many degrees of freedom."""
        if self.noise_share is None:
            return 1.0
        from scipy.special import chdtri  # imported here: it takes half a second

        return math.sqrt(degrees / float(chdtri(degrees, self.noise_share)))


NOW = Prospect()


class RatioEstimate(Protocol):
    """The ratio of a variant to the baseline."""

    @property
    def difference(self) -> float:
        """Return the logarithm of the ratio."""

    @property
    def method(self) -> str:
        """Return PAIRED, UNPAIRED or BRIDGED."""

    def half_width(
        self, confidence: float, prospect: Prospect = NOW, *, one_sided: bool = False
    ) -> float:
        """Return the half-width of the difference, with which all rows of the cell hold together.

        With `one_sided` the true difference is not above `difference + half-width`, with this
        confidence. The same holds below.
        """

    def standard_error(self, prospect: Prospect = NOW) -> float:
        """Return the standard error of the difference."""

    def among(self, variants: Collection[str]) -> Self:
        """Return this estimate with an error that is divided among these variants only."""


@dataclass(frozen=True, slots=True)
class CellEstimate:
    """The ratio of one variant in the model of its cell.

    `family` are the variants of the model whose intervals hold together. They have the part
    `share` of the cell's error.
    """

    model: CellModel
    variant: str
    family: tuple[str, ...]
    share: float = 1.0
    method: str = PAIRED

    @property
    def difference(self) -> float:
        """Return the logarithm of the ratio."""
        return self.model.contrasts[self.variant].difference

    def half_width(
        self, confidence: float, prospect: Prospect = NOW, *, one_sided: bool = False
    ) -> float:
        """Return the half-width of the difference."""
        model, contrast = self.model, self.model.contrasts[self.variant]
        blocks = contrast.common_blocks + prospect.launches
        added = len(model.contrasts) if prospect.in_blocks else 1
        degrees = model.degrees + added * prospect.launches
        confidence = 1 - (1 - confidence) * self.share
        correlations = model.correlations_of(self.family)
        family = dunnett_quantile(confidence, degrees, correlations, one_sided=one_sided)
        own = max(family, _t(1 - confidence, blocks - 1, one_sided))
        return max(family * self._pooled(prospect), own * self._own(prospect))

    def standard_error(self, prospect: Prospect = NOW) -> float:
        """Return the standard error of the difference."""
        return max(self._pooled(prospect), self._own(prospect))

    def among(self, variants: Collection[str]) -> CellEstimate:
        """Return this estimate with an error that is divided among these variants only."""
        family = tuple(name for name in self.model.contrasts if name in variants)
        return replace(self, family=family, share=len(family) / len(variants))

    def _pooled(self, prospect: Prospect) -> float:
        contrast = self.model.contrasts[self.variant]
        share = contrast.common_blocks / (contrast.common_blocks + prospect.launches)
        return contrast.standard_error * math.sqrt(share) * prospect.noise(self.model.degrees)

    def _own(self, prospect: Prospect) -> float:
        contrast = self.model.contrasts[self.variant]
        blocks = contrast.common_blocks
        return (
            contrast.own_deviation
            * prospect.noise(blocks - 1)
            / math.sqrt(blocks + prospect.launches)
        )


@dataclass(frozen=True, slots=True)
class PairEstimate:
    """The ratio of launches paired by block. `tests` are the rows among which the error of the
    cell is divided.
    """

    differences: tuple[float, ...]
    tests: int = 1
    method: str = PAIRED

    @property
    def difference(self) -> float:
        """Return the logarithm of the ratio."""
        return mean(self.differences)

    def half_width(
        self, confidence: float, prospect: Prospect = NOW, *, one_sided: bool = False
    ) -> float:
        """Return the half-width of the difference."""
        degrees = len(self.differences) + prospect.launches - 1
        return t_quantile(1 - (1 - confidence) / self.tests, degrees) * self.standard_error(
            prospect
        )

    def standard_error(self, prospect: Prospect = NOW) -> float:
        """Return the standard error of the difference."""
        count = len(self.differences)
        noise = standard_deviation(self.differences) * prospect.noise(count - 1)
        return noise / math.sqrt(count + prospect.launches)

    def among(self, variants: Collection[str]) -> PairEstimate:
        """Return this estimate with an error that is divided among these variants only."""
        return replace(self, tests=len(variants))


@dataclass(frozen=True, slots=True)
class WelchEstimate:
    """The ratio of the geometric means of two independent sets of launches, each given by its
    logarithms. `tests` are the rows among which the error of the cell is divided.

    Degrees of freedom by Satterthwaite (Biometrics Bulletin 2, 1946).
    """

    logs: tuple[float, ...]
    reference_logs: tuple[float, ...]
    tests: int = 1
    method: str = UNPAIRED

    @property
    def difference(self) -> float:
        """Return the logarithm of the ratio."""
        return mean(self.logs) - mean(self.reference_logs)

    def half_width(
        self, confidence: float, prospect: Prospect = NOW, *, one_sided: bool = False
    ) -> float:
        """Return the half-width of the difference."""
        parts = self._parts(prospect)
        spread = math.fsum(parts)
        if spread <= 0:
            return 0.0
        # Each share of the spread is squared, because squares of tiny numbers could underflow.
        degrees = 1 / math.fsum(
            (part / spread) ** 2 / (len(logs) + prospect.launches - 1)
            for part, logs in zip(parts, (self.logs, self.reference_logs), strict=True)
        )
        return _t((1 - confidence) / self.tests, degrees, one_sided) * math.sqrt(spread)

    def standard_error(self, prospect: Prospect = NOW) -> float:
        """Return the standard error of the difference."""
        return math.sqrt(math.fsum(self._parts(prospect)))

    def among(self, variants: Collection[str]) -> WelchEstimate:
        """Return this estimate with an error that is divided among these variants only."""
        return replace(self, tests=len(variants))

    def _parts(self, prospect: Prospect) -> list[float]:
        return [
            (standard_deviation(logs) * prospect.noise(len(logs) - 1)) ** 2
            / (len(logs) + prospect.launches)
            for logs in (self.logs, self.reference_logs)
        ]


@dataclass(frozen=True, slots=True)
class BridgeEstimate:
    """How much a variant's ratio to a common variant, the bridge, changed between two sessions.

    What the sessions do to all variants alike is in both ratios and cancels out. `tests` are the
    rows among which the error of the cell is divided.
    """

    later: RatioEstimate
    earlier: RatioEstimate
    tests: int = 1
    method: str = BRIDGED

    @property
    def difference(self) -> float:
        """Return the logarithm of the ratio of the ratios."""
        return self.later.difference - self.earlier.difference

    def half_width(
        self, confidence: float, prospect: Prospect = NOW, *, one_sided: bool = False
    ) -> float:
        """Return the half-width of the difference (Cochran's approximation)."""
        confidence = 1 - (1 - confidence) / self.tests
        return math.hypot(
            *(
                estimate.half_width(confidence, prospect, one_sided=one_sided)
                for estimate in (self.later, self.earlier)
            )
        )

    def standard_error(self, prospect: Prospect = NOW) -> float:
        """Return the standard error of the difference."""
        return math.hypot(
            self.later.standard_error(prospect), self.earlier.standard_error(prospect)
        )

    def among(self, variants: Collection[str]) -> BridgeEstimate:
        """Return this estimate with an error that is divided among these variants only."""
        return replace(self, tests=len(variants))


def _t(error: float, degrees: float, one_sided: bool) -> float:
    """Return the critical value of Student's t for this probability of an error."""
    return t_quantile(1 - error * (2 if one_sided else 1), degrees)


def pair_estimate(pairs: Sequence[tuple[float, float]], tests: int = 1) -> PairEstimate | None:
    """Return the estimate of (value, reference) pairs, or None for fewer than two pairs."""
    if len(pairs) < 2:
        return None
    return PairEstimate(
        tuple(math.log(value) - math.log(reference) for value, reference in pairs), tests
    )


def welch_estimate(
    values: Sequence[float], references: Sequence[float], tests: int = 1
) -> WelchEstimate | None:
    """Return the estimate of two independent sets, or None for fewer than two on a side."""
    if min(len(values), len(references)) < 2:
        return None
    return WelchEstimate(tuple(map(math.log, values)), tuple(map(math.log, references)), tests)


def cell_estimates(
    launches: Sequence[LaunchValue], baseline: str, may_pair: bool = True
) -> dict[str, RatioEstimate]:
    """Return the estimate of each variant that has one, for the launches of one cell.

    Variants with at least two blocks in common with the baseline are in the model of the cell. The
    others are compared with the baseline's launches as an independent set, if both have at least
    two launches. The error of the cell is divided among the rows of both kinds.
    """
    values: dict[str, list[float]] = {}
    for launch in launches:
        values.setdefault(launch.variant, []).append(launch.value)
    references = values.pop(baseline, [])
    model = fit_cell(launches, baseline) if may_pair else None
    modelled = model.contrasts if model else {}
    estimates: dict[str, RatioEstimate] = {}
    for variant, own in values.items():
        if model and variant in modelled:
            estimates[variant] = CellEstimate(model, variant, ()).among(values)
        elif welch := welch_estimate(own, references, len(values)):
            estimates[variant] = welch
    return estimates
