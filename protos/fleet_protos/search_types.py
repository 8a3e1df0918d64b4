"""Owns the values of a search for the highest load that meets an SLO, field for field as in
`v1/trial.proto`; chooses no load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

RATE: Final = "rate"
CONCURRENCY: Final = "concurrency"
MAX_RUNS_PER_LOAD: Final = 3  # of one load: two equal ones decide
_MIN_WITHIN: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Search:
    """Which load is looked for, in requests a second or in flight; `of` empty: none. See
    `trial.proto`.
    """

    of: str = ""
    least: float = 0.0
    most: float = 0.0
    within: float = 0.0
    goodput: float = 0.0

    @property
    def max_loads(self) -> int:
        """How many loads it takes at most while no answer is taken back: doublings, then halvings
        of the bracket.
        """
        doublings = math.ceil(math.log2(self.most / self.least))
        halvings = math.ceil(math.log2(math.log(2) / math.log1p(max(self.within, _MIN_WITHIN))))
        return (
            2 + max(doublings, 0) + max(halvings, 0)
        )  # the first load, and one for the rounding of loads

    @property
    def max_runs(self) -> int:
        """A search of more runs, void ones counted, ends with what it knows."""
        return MAX_RUNS_PER_LOAD * self.max_loads


@dataclass(frozen=True, slots=True)
class Searched:
    """What a run of a search tells of its `load` (0: a run of no search), and what is known after
    it; the newest run's word counts.
    """

    load: float = 0.0
    met: bool = False
    highest_met: float = 0.0
    lowest_not_met: float = 0.0
    ended: str = ""
    of: str = ""
