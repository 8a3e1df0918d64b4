"""Owns the rule that a job holds values and no shell variables: nothing expands `$TP`, so a server would get these very letters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fleet_controller.job_file.parsed_job import Reading
from fleet_controller.yaml.document import Path
from fleet_controller.yaml.findings import Finding

_UNFILLED = re.compile(r"\$\{[A-Za-z_]\w*\}|\$[A-Z_][A-Z0-9_]*(?![A-Za-z0-9_])|^\$[@*\d]$")


def is_unfilled(value: Any) -> bool:
    """A text with a shell variable in it: that is its fault, whatever else it would be."""
    return isinstance(value, str) and bool(_UNFILLED.search(value))


def check_unfilled(reading: Reading) -> Iterator[Finding]:
    """Values with a shell variable in them, as a job that was made of a pasted command has where a value was missing."""
    for path, value in _texts(reading):
        found = _UNFILLED.search(value)
        if found:
            message = f"nothing expands `{found[0][:60]}`: the server would get these very letters"
            yield reading.finding("unexpanded_variable", path, message, "write the value")


def _texts(reading: Reading) -> Iterator[tuple[Path, str]]:
    """Every text that reaches a server's command line, its variables or its container."""
    document = reading.document
    for path in (("model",), ("engine", "python"), ("engine", "container"), ("engine", "args"), ("engine", "env")):
        yield from _within(path, document.at(path, None))
    for factor, levels in reading.factor_levels().items():
        for level, content in levels.items():
            for key in ("args", "env"):
                yield from _within(("factors", factor, level, key), content.get(key) if isinstance(content, dict) else None)


def _within(path: Path, value: Any) -> Iterator[tuple[Path, str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _within((*path, key), entry)
    elif isinstance(value, tuple):
        for place, entry in enumerate(value):
            yield from _within((*path, place), entry)
