"""Owns a finding, the one form in which `lint` and `plan` tell what is wrong with a file; never
prints one.
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
    """One thing to tell about a file. `line` and `column` count from 1, 0 = nowhere in particular;
    `key` is dotted.
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
        """Whatever the file holds, a finding about it can be read: long values are quoted by their
        beginning.
        """
        for name in ("key", "message", "hint"):
            object.__setattr__(self, name, _bounded(getattr(self, name)))

    def to_json(self) -> dict[str, str | int]:
        """The finding as the `lint` contract writes it, keys in its order."""
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
        """`file:line:column: severity code: message (hint)`, which editors and terminals can jump
        to.
        """
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.file}:{self.line}:{self.column}: {self.severity} {self.code}: {self.message}{hint}"


def _bounded(text: str) -> str:
    if len(text) <= _LONGEST_QUOTE:
        return text
    short = _QUOTE.sub(
        lambda quote: (
            f"`{quote[1][: _LONGEST_QUOTE - 1]}…`" if len(quote[1]) > _LONGEST_QUOTE else quote[0]
        ),
        text,
    )
    ends = LONGEST_TEXT // 4  # what is said of a value stands after it
    return (
        short
        if len(short) <= LONGEST_TEXT
        else f"{short[: LONGEST_TEXT - ends - 3]} … {short[-ends:]}"
    )


class FileRejected(ConfigError):
    """A file has errors; `findings` holds all of them and the warnings beside them, in file order."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.findings = in_order(findings)
        errors = [finding for finding in self.findings if finding.severity == ERROR]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        first = errors[0] if errors else None
        message = (
            f"{first.file}:{first.line}:{first.column}: {first.message}{more}"
            if first
            else "the file was refused"
        )
        super().__init__(message, first.hint if first else "")


class JobRejected(FileRejected):
    """The job file has errors."""


class FleetRejected(FileRejected):
    """The fleet file has errors."""


def has_errors(findings: Iterable[Finding]) -> bool:
    """True when at least one finding is an error."""
    return any(finding.severity == ERROR for finding in findings)


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Each finding once, by its place in the file."""
    return tuple(
        sorted(
            dict.fromkeys(findings),
            key=lambda finding: (finding.file, finding.line, finding.column),
        )
    )
