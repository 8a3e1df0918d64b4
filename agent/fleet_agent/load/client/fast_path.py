"""Owns the shortcut of the decoder: events of a stream that differ from an earlier one in nothing
but their text. Pure; guesses nothing.

A server writes thousands of events that are the same bytes around another text. Once one of them
was read as JSON, what is before and behind its text is known; another read that is one chunk, with
one event, with the same bytes around, and with a text between them that needs no unescaping, says
the same thing with that text. Whatever else comes is read as JSON.
"""

from __future__ import annotations

import ctypes
import json
from array import array
from dataclasses import dataclass
from typing import Any, Final

from fleet_agent.load.client.native.library import Library, load_library
from fleet_agent.load.client.received import RecordedReads
from fleet_agent.load.client.single_line_event import parse_chunk_size

MAX_RUN_BYTES: Final = (
    1 << 17
    # of one run in C: where runs are short, room for all the rest each time would make a long answer
    # slow
)
_MARK: Final = (
    "\\u0001mark"  # as JSON escapes it: no server's text can contain it by chance and be mistaken
)
_TEXT_FIELDS: Final = (
    b'"content":"',
    b'"content": "',
    b'"reasoning_content":"',
    b'"reasoning_content": "',
    b'"text":"',
    b'"text": "',
)


@dataclass(frozen=True, slots=True)
class EventRun:
    """Events that are alike: the byte behind the last one, when each came, and their texts
    together.
    """

    end: int
    times_ns: array[int]
    text: str


@dataclass(frozen=True, slots=True)
class EventTemplate:
    """What is around the text of an event, from `data: ` to the end of its chunk."""

    before: bytes
    after: bytes

    @classmethod
    def from_event(cls, data: bytes) -> EventTemplate | None:
        """From an event's data that was read well; None when its text is not the only thing that it
        says.
        """
        for place in _TEXT_FIELDS:
            start = data.find(place) + len(place)
            end = data.find(b'"', start)
            if start < len(place) or end <= start or b"\\" in data[start:end]:
                continue
            if _is_only_text(data[:start], data[end:]):
                return cls(b"data: " + data[:start], data[end:] + b"\n\n\r\n")
        return None

    def read_run(self, reads: RecordedReads, read: int, at: int) -> EventRun:
        """Such events from byte `at` on, where a chunk begins, within that read.

        They end with the answer, before their room is used up, or before the first chunk that is
        cut, has another event, an empty text, or one that would need unescaping. The hot path of
        decoding.
        """
        found = load_library()
        return (
            self.read_run_in_python(reads, read, at)
            if found is None
            else self.read_run_in_c(found, reads, read, at)
        )

    def read_run_in_c(self, library: Library, reads: RecordedReads, read: int, at: int) -> EventRun:
        """As `take`; 0.1 µs an event."""
        data, before, behind = reads.data, self.before, self.after
        size = min(len(data), at + MAX_RUN_BYTES)
        line = data.find(b"\r\n", at, at + 10)
        if line <= at or not data.startswith(
            before, line + 2
        ):  # most that are not alike: no room is needed for what is none
            return EventRun(at, array("q"), "")
        times_ns = array("q", bytes(8 * ((size - at) // (len(before) + len(behind)) + 1)))
        text = bytearray(
            size - at + 1
            # no array of ctypes: that is a class for each size, which only the garbage collector takes
            # away
        )
        run = library.call.bf_read_events(
            data, size, at, before, len(before), behind, len(behind), reads.times_ns.buffer_info()[0], reads.ends.buffer_info()[0],
            read, times_ns.buffer_info()[0], ctypes.byref(ctypes.c_char.from_buffer(text)),
        )  # fmt: skip
        return EventRun(run.at, times_ns[: run.events], text[: run.text_size].decode())

    def read_run_in_python(self, reads: RecordedReads, read: int, at: int) -> EventRun:
        """As `take`; a microsecond an event."""
        data, ends, before, behind = reads.data, reads.ends, self.before, self.after
        size, length, rest = len(data), len(before), len(behind)
        times_ns, texts = array("q"), []
        while at < size:
            line = data.find(b"\r\n", at, at + 10)
            begin = line + 2 + length
            if line <= at or not data.startswith(before, line + 2):
                break
            end = data.find(b'"', begin)
            if (
                end <= begin
                or not data.startswith(behind, end)
                or parse_chunk_size(data[at:line]) != end + rest - line - 4
            ):
                break
            try:
                text = data[begin:end].decode()
            except UnicodeDecodeError:
                break
            if "\\" in text or not text.isprintable():
                break
            at = end + rest
            while (
                ends[read] < at - 2
            ):  # the read that completed the event; the chunk's own end may come later
                read += 1
            times_ns.append(reads.times_ns[read])
            texts.append(text)
        return EventRun(at, times_ns, "".join(texts))


def _is_only_text(before: bytes, behind: bytes) -> bool:
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
