"""Owns the rule that a job holds values and no shell variables: nothing expands `$TP`, so a server
would get these very letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fleet_controller.job_file.parsed_job import ParsedJob
from fleet_controller.yaml.document import KeyPath
from fleet_controller.yaml.findings import Finding

_UNEXPANDED = re.compile(r"\$\{[A-Za-z_]\w*\}|\$[A-Z_][A-Z0-9_]*(?![A-Za-z0-9_])|^\$[@*\d]$")


def has_unexpanded_variable(value: Any) -> bool:
    """A text with a shell variable in it: that is its fault, whatever else it would be."""
    return isinstance(value, str) and bool(_UNEXPANDED.search(value))


def check_unexpanded_variables(parsed: ParsedJob) -> Iterator[Finding]:
    """Values with a shell variable in them, as a job that was made of a pasted command has where a
    value was missing.
    """
    for path, value in _texts(parsed):
        found = _UNEXPANDED.search(value)
        if found:
            message = f"nothing expands `{found[0][:60]}`: the server would get these very letters"
            yield parsed.finding("unexpanded_variable", path, message, "write the value")


def _texts(parsed: ParsedJob) -> Iterator[tuple[KeyPath, str]]:
    """Every text that reaches a server's command line, its variables or its container."""
    document = parsed.document
    for path in (
        ("model",),
        ("engine", "python"),
        ("engine", "container"),
        ("engine", "args"),
        ("engine", "env"),
    ):
        yield from _texts_below(path, document.value_at(path, None))
    for factor, levels in parsed.factor_levels().items():
        for level, content in levels.items():
            for key in ("args", "env"):
                yield from _texts_below(
                    ("factors", factor, level, key),
                    content.get(key) if isinstance(content, dict) else None,
                )


def _texts_below(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _texts_below((*path, key), entry)
    elif isinstance(value, tuple):
        for place, entry in enumerate(value):
            yield from _texts_below((*path, place), entry)
