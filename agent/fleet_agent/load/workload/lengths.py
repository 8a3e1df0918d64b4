"""Draws lengths of prompts and answers from a distribution. A length depends only on the seed and
the number of the request, so no state is kept.
"""

from __future__ import annotations

import math
from hashlib import sha256
from statistics import NormalDist
from typing import Final

from fleet_protos.trial_types import Lengths

UNIFORM: Final = "uniform"
LOGNORMAL: Final = "lognormal"
_NORMAL: Final = NormalDist()
_BITS: Final = 52  # a double has room for as many bits and the added half


def uniform_share(seed: int, purpose: str, number: int) -> float:
    """Return a number between 0 and 1 that is the same in every run. Over many requests, these
    numbers are uniformly distributed.

    `purpose` separates the numbers that one request needs for different purposes.
    """
    digest = sha256(f"{seed}/{purpose}/{number}".encode()).digest()
    return ((int.from_bytes(digest[:8], "big") >> 64 - _BITS) + 0.5) / (1 << _BITS)


def length_at_share(lengths: Lengths, share_below: float) -> int:
    """Return the length in tokens below which the share `share_below` of all lengths lies. The
    length is at least 1.

    This is the inverse of the distribution function. Raises ValueError for an unknown distribution.
    """
    if lengths.distribution == UNIFORM:
        return max(1, lengths.least + math.floor(share_below * (lengths.most - lengths.least + 1)))
    if lengths.distribution == LOGNORMAL:
        drawn = round(lengths.median * math.exp(lengths.sigma * _NORMAL.inv_cdf(share_below)))
        return min(max(1, drawn), lengths.most)
    raise ValueError(
        f"the distribution of lengths {lengths.distribution!r} is unknown: "
        f"use {UNIFORM} or {LOGNORMAL}"
    )
