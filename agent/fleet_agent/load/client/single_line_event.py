"""Owns the shortcut past HTTP's chunks and the lines of events: an event of one line that is a chunk by itself. Pure; all else is left."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_BEGIN: Final = b"data: "


def lone_event(data: bytes, at: int) -> tuple[bytes, int] | None:
    """From byte `at`, where a chunk and an event begin: what the event says, and where its chunk ends. None for anything else."""
    line = data.find(b"\r\n", at, at + 10)
    if line <= at:
        return None
    begin = line + 2
    end = begin + size_of(data[at:line])
    if not data.startswith(_BEGIN, begin) or data[end - 2 : end + 2] != b"\n\n\r\n":
        return None
    said = data[begin + len(_BEGIN) : end - 2]
    return None if not said or b"\n" in said or b"\r" in said else (said, end + 2)


@lru_cache(4096)
def size_of(digits: bytes) -> int:
    """A chunk's size; -1 for what is none, such as 0x1 and 1_0, which int() would take."""
    return int(digits, 16) if not digits.strip(b"0123456789abcdefABCDEF") else -1
