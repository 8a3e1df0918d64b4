"""Reads a one-line event that fills one HTTP chunk, without the general parsers of chunks and
events.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_BEGIN: Final = b"data: "


def read_single_line_event(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Read an event from byte `at`, where a chunk and an event begin. Return the event's data and
    the offset after its chunk, or None if it has any other shape.
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
    """Return the size of a chunk, or -1 for anything but hexadecimal digits, such as 0x1 and 1_0,
    which int() would accept.
    """
    return int(digits, 16) if not digits.strip(b"0123456789abcdefABCDEF") else -1
