"""Owns what is told while a pasted file is read: notes with the line they are about; prints none
and knows no file name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet_controller.yaml.findings import ERROR, INFO, WARNING, Finding

_MOST, _MOST_ERRORS = 200, 400


@dataclass(slots=True)
class FindingCollector:
    """Findings about one file in the order they were made, each once; `line` counts from 1, 0 =
    nowhere in particular.
    """

    file: str
    found: dict[Finding, None] = field(default_factory=dict)

    def error(self, code: str, line: int, message: str, hint: str = "", key: str = "") -> None:
        """What must be edited before a job can be made of the file."""
        self._add(Finding(code, ERROR, self.file, line, min(line, 1), key, message, hint))

    def warn(self, code: str, line: int, message: str, hint: str = "", key: str = "") -> None:
        """What was read, but may mean something else than its writer thinks."""
        self._add(Finding(code, WARNING, self.file, line, min(line, 1), key, message, hint))

    def info(self, code: str, line: int, message: str, hint: str = "", key: str = "") -> None:
        """What was left out or put elsewhere."""
        self._add(Finding(code, INFO, self.file, line, min(line, 1), key, message, hint))

    def has_error(self) -> bool:
        """True when at least one finding is an error."""
        return any(finding.severity == ERROR for finding in self.found)

    def _add(self, finding: Finding) -> None:
        if len(self.found) < (_MOST_ERRORS if finding.severity == ERROR else _MOST):
            self.found.setdefault(finding)
