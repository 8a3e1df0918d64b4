"""Owns the reading of a server's log file: whole for a proof, its end for a cause; a log that is not there is empty."""

from __future__ import annotations

from pathlib import Path

_TAIL_BYTES = 256 * 1024


def whole(path: Path) -> str:
    """All of it, with undecodable bytes replaced."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def tail(path: Path) -> str:
    """Its last 256 KiB."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
