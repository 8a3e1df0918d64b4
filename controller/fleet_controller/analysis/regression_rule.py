"""Decides whether a comparison fails a check of continuous integration."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fleet_controller.analysis.comparison_values import Comparison, ComparisonRow
from fleet_controller.analysis.verdict import Verdict
from fleet_protos.metric_names import HIGHER_IS_BETTER

SLOWER, UNPROVED = "slower", "unproved"


@dataclass(frozen=True, slots=True)
class RegressionRule:
    """When a judged row fails.

    `slower` without a tolerance: its verdict is SLOWER. `slower` with one: the whole interval is
    beyond it. `unproved`: the interval is not wholly within it, so that a slowdown of that size is
    still possible. `tolerance` is relative: 0.03 stands for 3 %.
    """

    kind: str
    tolerance: float = 0.0

    def failing(self, comparison: Comparison) -> list[ComparisonRow]:
        """Return the rows that fail, in their order."""
        return [
            row
            for row in comparison.rows
            if row.is_judged and row.variant != comparison.baseline and self._fails(row)
        ]

    def _fails(self, row: ComparisonRow) -> bool:
        if self.kind == SLOWER and not self.tolerance:
            return row.verdict is Verdict.SLOWER
        worst, best = _changes(row)
        return best < -self.tolerance if self.kind == SLOWER else worst <= -self.tolerance

    def describe(self) -> str:
        """Return what a failing row did."""
        percent = f"{self.tolerance * 100:g} %"
        if self.kind == UNPROVED:
            return f"not proved to be at most {percent} slower"
        return f"certainly more than {percent} slower" if self.tolerance else "SLOWER"


def _changes(row: ComparisonRow) -> tuple[float, float]:
    """Return the relative change at the worse and at the better end of the interval.

    A slowdown is negative, as a change of the speed: for a time, that is its inverse.
    """
    if row.ratio_interval is None:
        return -1.0, math.inf
    low, high = row.ratio_interval.low, row.ratio_interval.high
    if not HIGHER_IS_BETTER[row.metric]:
        low, high = (1 / end if end else math.inf for end in (high, low))
    return low - 1, high - 1
