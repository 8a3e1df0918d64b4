"""Turns the arguments of a job file into SGLang's names and values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fleet_knowledge.sglang.server_arguments import is_negatable, resolve_name


def normalise_arguments(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments under SGLang's names, with values as the engine takes them.

    A mapping becomes JSON text. A flag that is off becomes None (absent), unless SGLang has a
    `--no-…` form of it.
    """
    return {(name := resolve_name(key).name): _value(name, value) for key, value in written.items()}


def _value(name: str, value: Any) -> Any:
    if value is False:
        return False if is_negatable(name) else None
    if isinstance(value, list | tuple):
        return [_text(item) for item in value]
    return _text(value)


def _text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list | tuple) else value


__all__ = ["normalise_arguments", "resolve_name"]
