"""Owns the shortcut past HTTP's chunks and the lines of events: an event of one line that is a
chunk by itself. Pure; all else is left.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_BEGIN: Final = b"data: "


def read_single_line_event(data: bytes, at: int) -> tuple[bytes, int] | None:
    """From byte `at`, where a chunk and an event begin: what the event says, and where its chunk
    ends. None for anything else.
    """
    line = data.find(b"\r\n", at, at + 10)
    if line <= at:
        return None
    begin = line + 2
    end = begin + parse_chunk_size(data[at:line])
    if not data.startswith(_BEGIN, begin) or data[end - 2 : end + 2] != b"\n\n\r\n":
        return None
    content = data[begin + len(_BEGIN) : end - 2]
    return None if not content or b"\n" in content or b"\r" in content else (content, end + 2)


@lru_cache(4096)
def parse_chunk_size(digits: bytes) -> int:
    """A chunk's size; -1 for what is none, such as 0x1 and 1_0, which int() would take."""
    return int(digits, 16) if not digits.strip(b"0123456789abcdefABCDEF") else -1
