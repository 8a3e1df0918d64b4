"""Fits one linear model to all launches of a cell, which is one host, workload and metric.

The model is `ln y = variant + block`, fitted by least squares. All variants share the estimate of
the noise, so that few launches of each give many degrees of freedom. No row is surer than its own
blocks: a variant that is noisier than the others keeps its own width.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from fleet_controller.analysis.statistics import mean, standard_deviation

SMALLEST_NOISE = 0.0005  # of the residual: values that agree better are rounded, not exact
COMMON_BLOCKS_MIN = 2


@dataclass(frozen=True, slots=True)
class LaunchValue:
    """The value of one launch, above 0. `block` is 0 for a launch that belongs to no block."""

    variant: str
    block: int
    value: float


@dataclass(frozen=True, slots=True)
class Contrast:
    """The difference `ln(variant) - ln(baseline)`, and how wide its interval is.

    `standard_error` is that of the pooled noise. `own_deviation` and `common_blocks` describe the
    variant's differences from the baseline block by block.
    """

    variant: str
    difference: float
    standard_error: float
    own_deviation: float
    common_blocks: int


@dataclass(frozen=True, slots=True)
class CellModel:
    """The fitted model of one cell.

    `residual_deviation` is on the log scale, which is relative, and has `degrees` of freedom.
    `correlations` are those of the contrasts, in their order. `blocks` are those of the launches
    that were used.
    """

    contrasts: Mapping[str, Contrast]
    residual_deviation: float
    degrees: int
    correlations: tuple[tuple[float, ...], ...]
    blocks: frozenset[int]

    def correlations_of(self, variants: Sequence[str]) -> tuple[tuple[float, ...], ...]:
        """Return the correlations of the contrasts of these variants."""
        places = [place for place, name in enumerate(self.contrasts) if name in variants]
        return tuple(tuple(self.correlations[i][j] for j in places) for i in places)


def fit_cell(launches: Sequence[LaunchValue], baseline: str) -> CellModel | None:
    """Return the model of the launches that share a block with another variant.

    A variant is in it if it has at least two blocks in common with the baseline. A block may lack
    variants, and may hold a variant twice. Returns None if no variant is in the model, or if the
    launches leave no degree of freedom for the noise.
    """
    used = _connected(launches, baseline)
    blocks = _by_block(used)
    common = {
        variant: [block for block in blocks.values() if variant in block and baseline in block]
        for variant in dict.fromkeys(launch.variant for launch in used)
        if variant != baseline
    }
    variants = [name for name, own in common.items() if len(own) >= COMMON_BLOCKS_MIN]
    if not variants:
        return None
    design = _fit(used, baseline)
    if design is None:
        return None
    covariance, differences, deviation, degrees, order = design
    places = [order.index(variant) for variant in variants]
    errors = [math.sqrt(covariance[place][place]) for place in places]
    correlations = tuple(
        tuple(
            float(covariance[i][j]) / (error * other)
            for j, other in zip(places, errors, strict=True)
        )
        for i, error in zip(places, errors, strict=True)
    )
    contrasts = {
        variant: Contrast(
            variant,
            differences[place],
            deviation * error,
            standard_deviation(
                [mean(block[variant]) - mean(block[baseline]) for block in common[variant]]
            ),
            len(common[variant]),
        )
        for variant, place, error in zip(variants, places, errors, strict=True)
    }
    return CellModel(contrasts, deviation, degrees, correlations, frozenset(blocks))


def _by_block(launches: Sequence[LaunchValue]) -> dict[int, dict[str, list[float]]]:
    """Return block -> variant -> logarithms of its values."""
    blocks: dict[int, dict[str, list[float]]] = {}
    for launch in launches:
        members = blocks.setdefault(launch.block, {})
        members.setdefault(launch.variant, []).append(math.log(launch.value))
    return blocks


def _connected(launches: Sequence[LaunchValue], baseline: str) -> list[LaunchValue]:
    """Return the launches whose block, directly or through others, leads to the baseline, without
    blocks that hold a single variant.
    """
    members: dict[int, set[str]] = defaultdict(set)
    for launch in launches:
        if launch.block > 0:
            members[launch.block].add(launch.variant)
    members = {block: names for block, names in members.items() if len(names) > 1}
    reached, added = set[str](), {baseline}
    while added:
        reached |= added
        added = set(chain(*(names for names in members.values() if names & added))) - reached
    return [launch for launch in launches if launch.block in members and launch.variant in reached]


def _fit(launches: Sequence[LaunchValue], baseline: str) -> Any:
    """Return (covariance of the differences for a noise of 1, differences, residual deviation,
    degrees of freedom, variants in their order), or None without a degree of freedom.
    """
    import numpy as np  # imported here: few commands need it

    variants = [
        name for name in dict.fromkeys(launch.variant for launch in launches) if name != baseline
    ]
    blocks = list(dict.fromkeys(launch.block for launch in launches))
    degrees = len(launches) - len(variants) - len(blocks)
    if degrees < 1:
        return None
    design = np.zeros((len(launches), len(variants) + len(blocks)))
    logs = np.array([math.log(launch.value) for launch in launches])
    for row, launch in enumerate(launches):
        if launch.variant != baseline:
            design[row, variants.index(launch.variant)] = 1
        design[row, len(variants) + blocks.index(launch.block)] = 1
    centre = float(logs.mean())
    solution, _, rank, _ = np.linalg.lstsq(design, logs - centre, rcond=None)
    if rank < design.shape[1]:
        raise ValueError("the launches of a cell are not connected")
    residuals = logs - centre - design @ solution
    deviation = math.sqrt(float(residuals @ residuals) / degrees)
    if deviation <= rounding([launch.value for launch in launches]):
        deviation = SMALLEST_NOISE
    covariance = np.linalg.inv(design.T @ design)[: len(variants), : len(variants)]
    return (
        covariance,
        [float(value) for value in solution[: len(variants)]],
        deviation,
        degrees,
        variants,
    )


def rounding(values: Sequence[float]) -> float:
    """Return the largest relative error that rounding to the written digits may have caused."""
    return max(_unit(value) / 2 / value for value in values)


def _unit(value: float) -> float:
    digits, _, exponent = repr(value).partition("e")
    decimals = len(digits.partition(".")[2]) if not digits.endswith(".0") else 0
    return 10.0 ** (int(exponent or 0) - decimals)
