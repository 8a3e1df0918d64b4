"""Owns the words for the way between two devices and which of them is nearer; reads no table.

Source: the legend of `nvidia-smi topo -m` (driver 535 to 580; `SOC` and `PSB` are those of drivers
before 375), `rocm-smi --showtopo`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SELF = "X"
_NVLINKS = re.compile(r"NV(\d+)")
_NEAR_TO_FAR = (
    "PIX",
    "PXB",
    "PHB",
    "NODE",
    "SYS",
)  # one PCIe bridge, several, a host bridge, within and between NUMA nodes
_OLD = {"SOC": "SYS", "PSB": "PIX", "SELF": SELF}
_LINKS = ("XGMI",)  # AMD's own, of which the tools print no count
_OTHER = ("PCIE",)
PEER_ACCESS = frozenset(
    {"OK", "NS", "CNS", "GNS", "TNS", "U"}
)  # `nvidia-smi topo -p2p`: yes, not supported and why, unknown


def parse_link_type(cell: str) -> str | None:
    """The path that a cell names; None for `N/A`, a blank, a cut or unknown word."""
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
    """NVLinks of a path: `NV18` has 18; 0 for any other."""
    found = _NVLINKS.fullmatch(word or "")
    return int(found[1]) if found else 0


def is_direct_link(word: str | None) -> bool:
    """NVLink or XGMI: the GPUs' own wires."""
    return count_nvlinks(word) > 0 or word in _LINKS


def distance(word: str) -> tuple[int, int]:
    """Sorts paths from near to far; more NVLinks are nearer."""
    if is_direct_link(word):
        return 0, -count_nvlinks(word)
    return (1 + _NEAR_TO_FAR.index(word), 0) if word in _NEAR_TO_FAR else (len(_NEAR_TO_FAR), 0)


def farthest_link(words: Iterable[str]) -> str | None:
    """The worst of them; None of none."""
    return max(words, key=distance, default=None)


def crosses_sockets(word: str | None) -> bool:
    """It leaves the NUMA node: too far for a NIC to be called near."""
    return word is None or word == "SYS"
