"""Owns versions of SGLang and NCCL and the ranges in which a fact holds; knows no fact itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)(?:\.?post(\d+))?")


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """A version by its numbers: `0.5.9`, `v0.4.6.post4-cu124` and `2.27.3+cuda12.9` are read; what
    follows the numbers is dropped.
    """

    numbers: tuple[int, ...]
    post: int = 0

    @classmethod
    def parse(cls, text: str) -> Release | None:
        """The version that `text` begins with; None when it begins with none."""
        found = _NUMBERS.match(text.strip())
        return cls(tuple(map(int, found[1].split("."))), int(found[2] or 0)) if found else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Release) and self._key == other._key

    def __lt__(self, other: Release) -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        return ".".join(map(str, self.numbers)) + (f".post{self.post}" if self.post else "")

    @property
    def _key(self) -> tuple[tuple[int, ...], int]:
        """`2.27` is `2.27.0`."""
        significant = self.numbers
        while significant and significant[-1] == 0:
            significant = significant[:-1]
        return significant, self.post


@dataclass(frozen=True, slots=True)
class VersionRange:
    """Versions in which a fact was found to hold, both ends counted; an open end is an empty text."""

    first: str = ""
    last: str = ""

    def contains(self, version: Release | None) -> bool:
        """True for a version within, and for one that is not known."""
        first, last = Release.parse(self.first), Release.parse(self.last)
        return version is None or (
            (first is None or first <= version) and (last is None or version <= last)
        )

    def __str__(self) -> str:
        if self.first and self.last:
            return self.first if self.first == self.last else f"{self.first} - {self.last}"
        return (
            f"from {self.first}"
            if self.first
            else f"up to {self.last}"
            if self.last
            else "any version"
        )
