"""Defines the server configuration that rules about SGLang read, and the findings that the rules
return.
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
    """Holds the arguments, environment and size of one server launch.

    `args` has SGLang's own names, and only arguments that were given. `gpus` is None if the launch
    may use as many GPUs as it needs. `release` is None if the version is unknown. `concurrency` is
    the largest number of requests that a closed loop keeps in flight; 0 means no closed loop.
    """

    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    model_path: str = ""
    gpus: int | None = None
    release: Release | None = None
    nodes: int = 1
    concurrency: int = 0

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a whole-number argument, or `default` if it is missing or not a whole number."""
        value = self.args.get(name)
        if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            return int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def size(self, name: str) -> int:
        """Return a parallel size. Return 1 if it is missing, invalid or below 1."""
        return max(self.number(name, 1) or 1, 1)

    def text(self, name: str) -> str:
        """Return an argument as text. Return an empty text if the argument is missing, None or
        False.
        """
        value = self.args.get(name)
        return "" if value is None or value is False else str(value)

    def is_on(self, name: str) -> bool:
        """Return whether a flag is given."""
        return self.args.get(name) is True

    def is_variable_on(self, variable: str) -> bool:
        """Return whether a variable has one of the values that SGLang reads as true."""
        return self.env.get(variable, "").strip().lower() in ("1", "true", "yes", "y", "t", "on")


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """Holds one finding of a rule. `subject` names what the finding is about: `args.NAME`,
    `env.NAME`, `gpus` or `concurrency`.
    """

    code: str
    severity: str
    subject: str
    message: str
    hint: str = ""


def refusal_severity(versions: VersionRange, release: Release | None) -> str | None:
    """Return the severity of a finding about a configuration that SGLang rejects in `versions`.

    Return ERROR if this release or every release rejects it. Return WARNING if the release is
    unknown and only some versions reject it. Return None if this release accepts it.
    """
    return {Certainty.YES: ERROR, Certainty.MAYBE: WARNING, Certainty.NO: None}[
        certainty_of(versions, release)
    ]


def versions_suffix(versions: VersionRange, release: Release | None) -> str:
    """Return a suffix for a message, such as ` (SGLang 0.5.3 - 0.5.15)`. Return an empty text if
    the release is known or the range includes every version.
    """
    return f" (SGLang {versions})" if release is None and versions != VersionRange() else ""
