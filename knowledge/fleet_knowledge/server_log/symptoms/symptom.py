"""Owns the form of one wording of a failure. Holds none."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fleet_knowledge.release import VersionRange

ROOT, AFTER, ECHO, LAST = 0, 1, 2, 3
"""How near the root a wording is. ROOT explains itself, AFTER may follow from another, ECHO and LAST say only that something ended."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """One wording. Named groups of `words` become details; `cure` replaces the class's where the
    words say more.
    """

    failure_class: str
    pattern: re.Pattern[str]
    source: str
    distance: int = ROOT
    cure: str = ""
    versions: VersionRange = field(default_factory=VersionRange)


def symptom(
    failure_class: str,
    pattern: str,
    source: str,
    distance: int = ROOT,
    cure: str = "",
    versions: VersionRange | None = None,
) -> Symptom:
    """One line of a table; `between` are the versions of SGLang (of NCCL in its rows) that write
    so, as far as known.
    """
    return Symptom(
        failure_class, re.compile(pattern), source, distance, cure, versions or VersionRange()
    )
