"""Reads an event that has one line and fills one HTTP chunk. This is faster than the general
parsers of chunks and events.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_BEGIN: Final = b"data: "


def read_single_line_event(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Return (data of the event, offset after its chunk). A chunk and an event must begin at byte
    `at`. Return None if the chunk is not one event with one line.
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
    """Return the size of a chunk. Return -1 if `digits` has other characters than hexadecimal
    digits, because int() would accept 0x1 and 1_0.
    """
    return int(digits, 16) if not digits.strip(b"0123456789abcdefABCDEF") else -1
