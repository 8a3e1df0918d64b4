"""Owns the drawing of lengths from a distribution, without a state: the seed and the number of a
request decide. Pure.
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
_BITS: Final = 52  # as many as leave room for the half in a double


def uniform_share(seed: int, purpose: str, number: int) -> float:
    """A number above 0 and below 1 for this purpose of that request, evenly spread over requests
    and the same in every run.
    """
    digest = sha256(f"{seed}/{purpose}/{number}".encode()).digest()
    return ((int.from_bytes(digest[:8], "big") >> 64 - _BITS) + 0.5) / (1 << _BITS)


def length_at_share(lengths: Lengths, share_below: float) -> int:
    """Tokens, at least 1: the length that this share of all lengths is below (the inverse of the
    distribution's function).

    Raises ValueError for a distribution of no known name.
    """
    if lengths.distribution == UNIFORM:
        return max(1, lengths.least + math.floor(share_below * (lengths.most - lengths.least + 1)))
    if lengths.distribution == LOGNORMAL:
        drawn = round(lengths.median * math.exp(lengths.sigma * _NORMAL.inv_cdf(share_below)))
        return min(max(1, drawn), lengths.most)
    raise ValueError(
        f"lengths are drawn from {lengths.distribution!r}, which is neither {UNIFORM} nor {LOGNORMAL}"
    )
