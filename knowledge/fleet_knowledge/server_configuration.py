"""Owns the form in which a rule about SGLang says something of one configuration; knows neither
files nor lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet_knowledge.release import Release, VersionRange
from fleet_knowledge.sglang_releases import Certainty, certainty_of

ERROR, WARNING, INFO = "error", "warning", "info"


_WHOLE = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class ServerConfiguration:
    """What a server is launched with: arguments by SGLang's own names (absent when not given),
    variables, GPUs given (None: as needed).

    `release` is None when the version is not known. `concurrency` is the most requests that a
    closed loop keeps in flight, 0 = none.
    """

    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    model_path: str = ""
    gpus: int | None = None
    release: Release | None = None
    nodes: int = 1
    concurrency: int = 0

    def number(self, name: str, default: int | None = None) -> int | None:
        """A whole-number argument; the default when it is not given or not a number."""
        value = self.args.get(name)
        if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            return int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def size(self, name: str) -> int:
        """A parallel size; 1 when it is not given or makes no sense."""
        return max(self.number(name, 1) or 1, 1)

    def text(self, name: str) -> str:
        """An argument as text, empty when it is not given."""
        value = self.args.get(name)
        return "" if value is None or value is False else str(value)

    def is_on(self, name: str) -> bool:
        """True when a flag is given."""
        return self.args.get(name) is True

    def is_variable_on(self, variable: str) -> bool:
        """True when a variable has one of the values that SGLang reads as true."""
        return self.env.get(variable, "").strip().lower() in ("1", "true", "yes", "y", "t", "on")


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """One thing to tell. `subject` is what causes it: `args.NAME`, `env.NAME`, `gpus` or
    `concurrency`.
    """

    code: str
    severity: str
    subject: str
    message: str
    hint: str = ""


def refusal_severity(versions: VersionRange, release: Release | None) -> str | None:
    """ERROR where SGLang surely refuses, WARNING where it does so in some versions and ours is not
    known, None where it does not.
    """
    return {Certainty.YES: ERROR, Certainty.MAYBE: WARNING, Certainty.NO: None}[
        certainty_of(versions, release)
    ]


def versions_suffix(versions: VersionRange, release: Release | None) -> str:
    """` (SGLang 0.5.3 - 0.5.15)`, for messages when the version is not known and matters."""
    return f" (SGLang {versions})" if release is None and versions != VersionRange() else ""
