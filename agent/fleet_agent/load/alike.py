"""Owns the shortcut of the decoder: events of a stream that differ from an earlier one in nothing but their text. Pure; guesses nothing.

A server writes thousands of events that are the same bytes around another text. Once one of them was read as JSON, what is before and
behind its text is known; another read that is one chunk, with one event, with the same bytes around, and with a text between them that
needs no unescaping, says the same thing with that text. Whatever else comes is read as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

_MARK: Final = "\\u0001mark"  # as JSON escapes it: no server's text can contain it by chance and be mistaken
_PLACES: Final = (b'"content":"', b'"content": "', b'"reasoning_content":"', b'"reasoning_content": "', b'"text":"', b'"text": "')


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

    def text_of(self, chunk: bytes) -> str:
        """The text of a read that is one whole chunk with one such event; empty for any other, or one whose text is empty."""
        line = chunk.find(b"\r\n", 0, 10)
        start, end = line + 2 + len(self.before), len(chunk) - len(self.behind)
        if line <= 0 or end <= start or not chunk.endswith(self.behind) or not chunk.startswith(self.before, line + 2):
            return ""
        text = chunk[start:end]
        if b'"' in text or b"\\" in text:
            return ""
        try:
            if int(chunk[:line], 16) != len(chunk) - line - 4:  # int() takes more than a chunk's size may be, such as 0x1 and 1_0
                return ""
            words = text.decode()
        except ValueError:
            return ""
        return words if words.isprintable() and chunk[:line].isalnum() and b"x" not in chunk[:line] else ""


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
