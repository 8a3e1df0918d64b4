"""Defines the link types between two devices, and orders them from near to far.

Source: the legend of `nvidia-smi topo -m` (driver 535 to 580; `SOC` and `PSB` are those of drivers
before 375), `rocm-smi --showtopo`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SELF = "X"
_NVLINKS = re.compile(r"NV(\d+)")
# one PCIe bridge, several, a host bridge, within a NUMA node, between NUMA nodes
_NEAR_TO_FAR = ("PIX", "PXB", "PHB", "NODE", "SYS")
_OLD = {"SOC": "SYS", "PSB": "PIX", "SELF": SELF}
_LINKS = ("XGMI",)  # AMD's links; the tools do not print how many there are
_OTHER = ("PCIE",)
# `nvidia-smi topo -p2p`: supported, not supported for different reasons, unknown
PEER_ACCESS = frozenset({"OK", "NS", "CNS", "GNS", "TNS", "U"})


def parse_link_type(cell: str) -> str | None:
    """Return the link type that a cell names.

    Return None for `N/A`, a blank cell, a cell that was cut off and an unknown word.
    """
    word = cell.strip().upper()
    word = _OLD.get(word, word)
    known = (
        word == SELF
        or word in _NEAR_TO_FAR
        or word in _LINKS
        or word in _OTHER
        or _NVLINKS.fullmatch(word)
    )
    return word if known else None


def count_nvlinks(word: str | None) -> int:
    """Return the number of NVLinks: 18 for `NV18`, 0 for any other link type."""
    found = _NVLINKS.fullmatch(word or "")
    return int(found[1]) if found else 0


def is_direct_link(word: str | None) -> bool:
    """Return whether the link is NVLink or XGMI, which connect GPUs directly."""
    return count_nvlinks(word) > 0 or word in _LINKS


def distance(word: str) -> tuple[int, int]:
    """Return a sort key that puts link types in order from near to far; more NVLinks are nearer."""
    if is_direct_link(word):
        return 0, -count_nvlinks(word)
    return (1 + _NEAR_TO_FAR.index(word), 0) if word in _NEAR_TO_FAR else (len(_NEAR_TO_FAR), 0)


def farthest_link(words: Iterable[str]) -> str | None:
    """Return the farthest of the link types; None if there are none."""
    return max(words, key=distance, default=None)


def crosses_sockets(word: str | None) -> bool:
    """Return whether the link leaves the NUMA node or is unknown. A NIC behind it is not near."""
    return word is None or word == "SYS"
