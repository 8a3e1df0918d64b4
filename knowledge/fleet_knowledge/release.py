"""Parses versions of SGLang and NCCL and compares them with version ranges."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

_NUMBERS = re.compile(r"v?(\d+(?:\.\d+)*)(?:\.?post(\d+))?")


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """A version as numbers.

    It is read from texts such as `0.5.9`, `v0.4.6.post4-cu124` and `2.27.3+cuda12.9`. The text
    after the numbers is dropped.
    """

    numbers: tuple[int, ...]
    post: int = 0

    @classmethod
    def parse(cls, text: str) -> Release | None:
        """Return the version at the start of `text`, or None if it does not start with one."""
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
        """Return the key for comparisons. It makes `2.27` equal to `2.27.0`."""
        significant = self.numbers
        while significant and significant[-1] == 0:
            significant = significant[:-1]
        return significant, self.post


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The range of versions in which a fact was found to hold, both ends included. An empty text is
    an open end.
    """

    first: str = ""
    last: str = ""

    def contains(self, version: Release | None) -> bool:
        """Return whether the version is in the range. An unknown version (None) counts as in the
        range.
        """
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
