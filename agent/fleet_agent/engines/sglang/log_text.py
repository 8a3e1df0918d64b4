"""Owns the reading of a server's log file as a whole for a proof; a log that is not there is empty."""

from __future__ import annotations

from pathlib import Path


def whole(path: Path) -> str:
    """All of it, with undecodable bytes replaced."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
