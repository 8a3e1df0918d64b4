"""Defines paths to the values of a YAML file and positions in the file."""

from __future__ import annotations

KeyPath = tuple[str | int, ...]
LineColumn = tuple[int, int]


def dotted(path: KeyPath) -> str:
    """Return the path as text, such as `workloads.busy.concurrency[1]`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
