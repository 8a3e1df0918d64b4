"""Defines a symptom: one wording of a failure in a log."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fleet_knowledge.release import VersionRange

ROOT, AFTER, ECHO, LAST = 0, 1, 2, 3
"""How near a wording is to the root cause: ROOT is a cause, AFTER may follow from another failure,
ECHO and LAST only report that something ended."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """One wording of a failure.

    Named groups of `pattern` become details. `cure` replaces the cure of the class if the wording
    says more. `versions` are the SGLang versions (NCCL versions in NCCL rows) that are known to
    write it.
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
    """Return one row of a symptom table."""
    return Symptom(
        failure_class, re.compile(pattern), source, distance, cure, versions or VersionRange()
    )
