"""Defines the finding, the one form in which `lint`, `plan` and the importers report a problem of a
file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fleet_protos.errors import ConfigError

ERROR, WARNING, INFO = "error", "warning", "info"
LONGEST_TEXT = 1000  # letters of a message, a hint or a key
_LONGEST_QUOTE = 120  # letters of a value between backticks, which may be any text of the file
_QUOTE = re.compile(r"`([^`]*)`")


@dataclass(frozen=True, slots=True)
class Finding:
    """One remark about a file. `line` and `column` count from 1; 0 means no particular place. `key`
    is a dotted path.
    """

    code: str
    severity: str
    file: str
    line: int
    column: int
    key: str
    message: str
    hint: str = ""

    def __post_init__(self) -> None:
        """Shorten long texts and long quoted values. So a finding stays readable, whatever the file
        contains.
        """
        for name in ("key", "message", "hint"):
            object.__setattr__(self, name, _shorten(getattr(self, name)))

    def to_json(self) -> dict[str, str | int]:
        """Return the finding in the JSON form of `lint`, with the keys in the documented order."""
        return {
            "code": self.code,
            "severity": self.severity,
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "key": self.key,
            "message": self.message,
            "hint": self.hint,
        }

    def __str__(self) -> str:
        """Return `file:line:column: severity code: message (hint)`. Editors and terminals can open
        such a place.
        """
        hint = f" ({self.hint})" if self.hint else ""
        return (
            f"{self.file}:{self.line}:{self.column}: {self.severity} {self.code}: "
            f"{self.message}{hint}"
        )


def _shorten(text: str) -> str:
    if len(text) <= _LONGEST_QUOTE:
        return text
    short = _QUOTE.sub(
        lambda quote: (
            f"`{quote[1][: _LONGEST_QUOTE - 1]}…`" if len(quote[1]) > _LONGEST_QUOTE else quote[0]
        ),
        text,
    )
    ends = LONGEST_TEXT // 4  # the remark on a value comes after it
    return (
        short
        if len(short) <= LONGEST_TEXT
        else f"{short[: LONGEST_TEXT - ends - 3]} … {short[-ends:]}"
    )


class FileRejected(ConfigError):
    """The error for a file with findings of severity error. `findings` holds all errors and
    warnings, in file order.
    """

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = in_order(findings)
        errors = [finding for finding in self.findings if finding.severity == ERROR]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        first = errors[0] if errors else None
        message = (
            f"{first.file}:{first.line}:{first.column}: {first.message}{more}"
            if first
            else "the file was rejected"
        )
        super().__init__(message, first.hint if first else "")


class JobRejected(FileRejected):
    """The error for a job file that is rejected."""


class FleetRejected(FileRejected):
    """The error for a fleet file that is rejected."""


def has_errors(findings: Iterable[Finding]) -> bool:
    """Return whether at least one finding is an error."""
    return any(finding.severity == ERROR for finding in findings)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return each finding once, sorted by its place in the file."""
    return tuple(
        sorted(
            dict.fromkeys(findings),
            key=lambda finding: (finding.file, finding.line, finding.column),
        )
    )
