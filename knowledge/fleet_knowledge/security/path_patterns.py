"""Finds paths and addresses in a value, and matches them against patterns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

_PATH = re.compile(
    r"(?:^|(?<=[\s\"'`=:;,@!|&<>(\[{]))(?:file:(?://)?)?((?:~[A-Za-z0-9._-]*)?/[^\s\"'`;,|&<>)\]}]*)"
)
_SCHEME = re.compile(r"(?:^|(?<=[\s\"'=,;(\[{@]))([A-Za-z][A-Za-z0-9+.-]*)://([^\s\"',;)\]}]*)")
_UP = re.compile(r"(?:^|[^A-Za-z0-9_.-])\.\.(?:$|[^A-Za-z0-9_.-])")


def iter_texts(value: Any) -> Iterator[str]:
    """Yield every text in a value, including the keys of maps. A text that is JSON is
    parsed first.
    """
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from (str(key), *iter_texts(entry))
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from iter_texts(entry)
    elif isinstance(value, str):
        parsed = _parse_json(value)
        yield from iter_texts(parsed) if isinstance(parsed, dict | list) else (value,)


def _parse_json(text: str) -> Any:
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def paths_in(value: Any) -> tuple[str, ...]:
    """Return each absolute path in a value as it is written, including a path behind `name=`.

    A relative path is not returned, because it stays in the server's own folder.
    """
    return tuple(
        dict.fromkeys(
            match[1]
            for text in iter_texts(value)
            for match in _PATH.finditer(_without_addresses(text))
        )
    )


def addresses_in(value: Any) -> tuple[tuple[str, str], ...]:
    """Return (scheme, text after `://`) of each address in a value. An address with `file:` is left
    out, since it counts as a path.
    """
    found = (match.groups() for text in iter_texts(value) for match in _SCHEME.finditer(text))
    return tuple((scheme.lower(), rest) for scheme, rest in found if scheme.lower() != "file")


def has_parent_reference(value: Any) -> bool:
    """Return whether a value contains `..` as a folder."""
    return any(_UP.search(text) for text in iter_texts(value))


def _without_addresses(text: str) -> str:
    return _SCHEME.sub(lambda match: match[0] if match[1].lower() == "file" else "", text)


def matches_pattern(text: str, pattern: str) -> bool:
    """Return whether a glob pattern matches the whole text.

    `*` and `?` match within one folder, `**` also matches across folders. The pattern `*` alone
    matches any text.
    """
    return _compiled(pattern).fullmatch(text) is not None


def is_inside_pattern(path: str, pattern: str) -> bool:
    """Return whether the pattern matches `path` or a folder above it."""
    folder = _compiled(pattern.rstrip("/")).pattern  # empty for `/`: everything is below it
    return re.compile(f"(?:{folder})(?:/.*)?", re.DOTALL).fullmatch(path) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    if pattern in ("*", "**"):
        return re.compile(".*", re.DOTALL)
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    words = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(words.get(part, re.escape(part)) for part in parts), re.DOTALL)
