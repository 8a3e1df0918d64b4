"""Owns the shortcut of the decoder: events of a stream that differ from an earlier one in nothing but their text. Pure; guesses nothing.

A server writes thousands of events that are the same bytes around another text. Once one of them was read as JSON, what is before and
behind its text is known; another read that is one chunk, with one event, with the same bytes around, and with a text between them that
needs no unescaping, says the same thing with that text. Whatever else comes is read as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

_MARK: Final = "\\u0001mark"  # as JSON escapes it: no server's text can contain it by chance and be mistaken
_PLACES: Final = (b'"content":"', b'"content": "', b'"reasoning_content":"', b'"reasoning_content": "', b'"text":"', b'"text": "')


Reads = Sequence[tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Alike:
    """What is around the text of an event, from `data: ` to the end of its chunk."""

    before: bytes
    behind: bytes

    @classmethod
    def like(cls, data: bytes) -> Alike | None:
        """From an event's data that was read well; None when its text is not the only thing that it says."""
        for place in _PLACES:
            start = data.find(place) + len(place)
            end = data.find(b'"', start)
            if start < len(place) or end <= start or b"\\" in data[start:end]:
                continue
            if _is_the_text(data[:start], data[end:]):
                return cls(b"data: " + data[:start], data[end:] + b"\n\n\r\n")
        return None

    def take(self, reads: Reads, number: int, at: int, times: list[int], texts: list[str]) -> tuple[int, int]:
        """Append the texts of such events, and the times of their reads, from byte `at` of a read on, where a chunk begins.

        Returns the read and the byte in it where it ends: behind the last read, or before the first chunk that is cut, has another
        event, an empty text, or one that would need unescaping. The hot path of decoding.
        """
        before, behind, most = self.before, self.behind, len(reads)
        length, rest = len(before), len(behind)
        while number < most:
            ns, data = reads[number]
            size = len(data)
            while at < size:
                line = data.find(b"\r\n", at, at + 10)
                begin = line + 2 + length
                if line <= at or not data.startswith(before, line + 2):
                    return number, at
                end = data.find(b'"', begin)
                if end <= begin or not data.startswith(behind, end) or _size_of(data[at:line]) != end + rest - line - 4:
                    return number, at
                try:
                    text = data[begin:end].decode()
                except UnicodeDecodeError:
                    return number, at
                if "\\" in text or not text.isprintable():
                    return number, at
                times.append(ns)
                texts.append(text)
                at = end + rest
            number, at = number + 1, 0
        return number, 0


@lru_cache(4096)
def _size_of(digits: bytes) -> int:
    """A chunk's size; -1 for what is none, such as 0x1 and 1_0, which int() would take."""
    return int(digits, 16) if not digits.strip(b"0123456789abcdefABCDEF") else -1


def _is_the_text(before: bytes, behind: bytes) -> bool:
    """Whether what is between them is the whole text of an event that says nothing else."""
    try:
        content = json.loads((before + _MARK.encode() + behind).decode())
        [choice] = content["choices"]
        delta: Any = choice.get("delta", choice)
        texts = [delta.get(name) for name in ("text", "content", "reasoning_content", "reasoning")]
        says_more = [content.get(name) for name in ("error", "meta_info", "usage", "sglext")] + [
            choice.get("finish_reason"), choice.get("meta_info"), delta.get("tool_calls"),
        ]  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    return [text for text in texts if text] == [json.loads(f'"{_MARK}"')] and not any(says_more)
