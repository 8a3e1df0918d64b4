"""Frozen values of a search for the highest load that meets an SLO, field for field as in
`v1/trial.proto`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

RATE: Final = "rate"
CONCURRENCY: Final = "concurrency"
MAX_RUNS_PER_LOAD: Final = 3  # two runs with the same answer decide
_MIN_WITHIN: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Search:
    """A search over the request rate or the concurrency; an empty `of` means no search. See
    `trial.proto`.
    """

    of: str = ""
    least: float = 0.0
    most: float = 0.0
    within: float = 0.0
    goodput: float = 0.0

    @property
    def max_loads(self) -> int:
        """The most loads that the search visits if no result is revised: doublings, then halvings
        of the bracket.
        """
        doublings = math.ceil(math.log2(self.most / self.least))
        halvings = math.ceil(math.log2(math.log(2) / math.log1p(max(self.within, _MIN_WITHIN))))
        # 2: the first load, and one more because loads are rounded
        return 2 + max(doublings, 0) + max(halvings, 0)

    @property
    def max_runs(self) -> int:
        """The number of runs, void ones included, after which the search ends with what it has
        found.
        """
        return MAX_RUNS_PER_LOAD * self.max_loads


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search knows after one of its runs. `load` is 0 for a run outside a search. The newest
    run's values supersede earlier ones.
    """

    load: float = 0.0
    met: bool = False
    highest_met: float = 0.0
    lowest_not_met: float = 0.0
    ended: str = ""
    of: str = ""
