"""Defines what a search for the highest load varies, and its maximum number of loads and runs."""

from __future__ import annotations

import math
from typing import Final

from fleet_protos.v1.trial_values import Search

RATE: Final = "rate"  # values of `Search.of`
CONCURRENCY: Final = "concurrency"
MAX_RUNS_PER_LOAD: Final = 3  # two runs with the same answer decide
_MIN_WITHIN: Final = 1e-3


def max_loads(search: Search) -> int:
    """Return the maximum number of loads that the search visits if no result is revised. The search
    first doubles the load and then halves the bracket.
    """
    doublings = math.ceil(math.log2(search.most / search.least))
    halvings = math.ceil(math.log2(math.log(2) / math.log1p(max(search.within, _MIN_WITHIN))))
    # 2: the first load, and one more because loads are rounded
    return 2 + max(doublings, 0) + max(halvings, 0)


def max_runs(search: Search) -> int:
    """Return the number of runs after which the search ends with what it has found. Void runs
    count, too.
    """
    return MAX_RUNS_PER_LOAD * max_loads(search)
