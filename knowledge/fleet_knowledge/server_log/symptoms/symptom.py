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
    """Describes one wording of a failure.

    Named groups of `pattern` become details. `cure` replaces the cure of the failure class if the
    wording allows better advice. `versions` are the versions that are known to write the wording:
    NCCL versions for NCCL's lines, else SGLang versions.
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
