"""Represents a job file while it is checked: the document, its models, and which parts are
sound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet_controller.job_file.job_models import JobFile
from fleet_controller.yaml.document import Document
from fleet_controller.yaml.findings import ERROR, Finding
from fleet_controller.yaml.key_path import KeyPath, dotted


@dataclass(frozen=True, slots=True)
class ParsedJob:
    """The readable part of a job file. Values of `job` at or below a path in `broken` are defaults
    or stand-ins, not what the user wrote.
    """

    document: Document
    job: JobFile
    broken: frozenset[KeyPath] = field(default=frozenset())

    def is_sound(self, *paths: KeyPath) -> bool:
        """Return True if no broken value is at, above or below any of `paths`."""
        return not any(_paths_overlap(path, bad) for path in paths for bad in self.broken)

    def is_readable(self, path: KeyPath) -> bool:
        """Return True if the user wrote the value of `job` at `path`. Broken parts below it may
        have been left out.
        """
        return not any(path[: len(bad)] == bad for bad in self.broken)

    def finding(
        self,
        code: str,
        path: KeyPath,
        message: str,
        hint: str = "",
        *,
        severity: str = ERROR,
        at_key: bool = False,
    ) -> Finding:
        """Return a finding at the value of `path`, or at its key."""
        line, column = self.document.place(path, at_key=at_key)
        return Finding(
            code, severity, self.document.file, line, column, dotted(path), message, hint
        )

    def is_written(self, path: KeyPath) -> bool:
        """Return True if the file contains `path`, even if its value is null."""
        return path in self.document.keys

    def factor_levels(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the levels of each factor with their content as written, even if a level is not
        sound. A factor that is not a mapping is left out.
        """
        factors = (
            self.document.value.get("factors") if isinstance(self.document.value, dict) else None
        )
        if not isinstance(factors, dict):
            return {}
        return {name: levels for name, levels in factors.items() if isinstance(levels, dict)}


def _paths_overlap(one: KeyPath, other: KeyPath) -> bool:
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]
