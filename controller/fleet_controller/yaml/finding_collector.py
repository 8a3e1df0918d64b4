"""Collects the findings about a file that is being imported. Each finding has its line."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet_controller.yaml.findings import ERROR, INFO, WARNING, Finding

_MOST, _MOST_ERRORS = 200, 400


@dataclass(slots=True)
class FindingCollector:
    """The findings about one file in the order of their creation, without duplicates. Lines count
    from 1; 0 means no particular line.
    """

    file: str
    found: dict[Finding, None] = field(default_factory=dict)

    def error(self, code: str, line: int, message: str, hint: str = "", key: str = "") -> None:
        """Add an error: something that must be edited before a job can be made from the file."""
        self._add(Finding(code, ERROR, self.file, line, min(line, 1), key, message, hint))

    def warn(self, code: str, line: int, message: str, hint: str = "", key: str = "") -> None:
        """Add a warning: something that was read but may mean something else than its author
        thinks.
        """
        self._add(Finding(code, WARNING, self.file, line, min(line, 1), key, message, hint))

    def info(self, code: str, line: int, message: str, hint: str = "", key: str = "") -> None:
        """Add a note about something that was left out or moved."""
        self._add(Finding(code, INFO, self.file, line, min(line, 1), key, message, hint))

    def has_error(self) -> bool:
        """Return whether at least one finding is an error."""
        return any(finding.severity == ERROR for finding in self.found)

    def _add(self, finding: Finding) -> None:
        if len(self.found) < (_MOST_ERRORS if finding.severity == ERROR else _MOST):
            self.found.setdefault(finding)
