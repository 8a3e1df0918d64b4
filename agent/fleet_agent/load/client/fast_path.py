"""Decodes stream events without parsing JSON, if they differ from an earlier event only in their
text.

A server writes thousands of events in which only the text changes. Once such an event has been
parsed as JSON, the bytes before and after its text are known. If a later chunk has exactly one
event with the same bytes before and after the text, only its text is read. Any other chunk is
parsed as JSON. So is a text with escapes, if this runs in Python.
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

# Limit for one run in C. Where runs are short, a buffer for the whole rest of a long answer in each
# call would be slow.
MAX_RUN_BYTES: Final = 1 << 17
# A probe text, as JSON escapes it: the text of a server cannot contain it by chance.
_MARK: Final = "\\u0001mark"
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
    """Holds consecutive events that match a template.

    `end`: the byte offset after the last event.
    `times_ns`: the arrival time of each event, as perf_counter_ns.
    `text`: the texts of all events, joined.
    """

    end: int
    times_ns: array[int]
    text: str


@dataclass(frozen=True, slots=True)
class EventTemplate:
    """Holds the bytes before and after the text of an event, from `data: ` to the end of the
    event's chunk.
    """

    before: bytes
    after: bytes

    @classmethod
    def from_event(cls, data: bytes) -> EventTemplate | None:
        """Return the template for events like this one, of which `data` was parsed. Return None if
        the event has more than a text.
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
        """Read the events that match the template, from byte `at` on. A chunk must begin there, and
        read number `read` must contain this byte.

        Reading stops at the end of the answer, when the buffer is full, and before the first chunk
        that does not match. A chunk does not match if it is incomplete, is another event, has an
        empty text or (in Python) a text with escapes. This is the hot path of decoding.
        """
        found = load_library()
        return (
            self.read_run_in_python(reads, read, at)
            if found is None
            else self.read_run_in_c(found, reads, read, at)
        )

    def read_run_in_c(self, library: Library, reads: RecordedReads, read: int, at: int) -> EventRun:
        """Implement `read_run` in C, in 0.1 µs per event."""
        data, before, after = reads.data, self.before, self.after
        size = min(len(data), at + MAX_RUN_BYTES)
        line = data.find(b"\r\n", at, at + 10)
        # rejects most chunks that do not match, before a buffer is allocated
        if line <= at or not data.startswith(before, line + 2):
            return EventRun(at, array("q"), "")
        times_ns = array("q", bytes(8 * ((size - at) // (len(before) + len(after)) + 1)))
        # not a ctypes array: each size would be a new class, which only the garbage collector frees
        text = bytearray(size - at + 1)
        run = library.call.bf_read_events(
            data,
            size,
            at,
            before,
            len(before),
            after,
            len(after),
            reads.times_ns.buffer_info()[0],
            reads.ends.buffer_info()[0],
            read,
            times_ns.buffer_info()[0],
            ctypes.byref(ctypes.c_char.from_buffer(text)),
        )
        return EventRun(run.at, times_ns[: run.events], text[: run.text_size].decode())

    def read_run_in_python(self, reads: RecordedReads, read: int, at: int) -> EventRun:
        """Implement `read_run` in Python, in 1 µs per event."""
        data, ends, before, after = reads.data, reads.ends, self.before, self.after
        size, length, rest = len(data), len(before), len(after)
        times_ns, texts = array("q"), []
        while at < size:
            line = data.find(b"\r\n", at, at + 10)
            begin = line + 2 + length
            if line <= at or not data.startswith(before, line + 2):
                break
            end = data.find(b'"', begin)
            if (
                end <= begin
                or not data.startswith(after, end)
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
            # find the read that completed the event; the end of the chunk may arrive later
            while ends[read] < at - 2:
                read += 1
            times_ns.append(reads.times_ns[read])
            texts.append(text)
        return EventRun(at, times_ns, "".join(texts))


def _is_only_text(before: bytes, after: bytes) -> bool:
    """Return whether the string between `before` and `after` is the whole text of an event that has
    nothing besides this text.
    """
    try:
        content = json.loads((before + _MARK.encode() + after).decode())
        [choice] = content["choices"]
        delta: Any = choice.get("delta", choice)
        texts = [delta.get(name) for name in ("text", "content", "reasoning_content", "reasoning")]
        says_more = [content.get(name) for name in ("error", "meta_info", "usage", "sglext")] + [
            choice.get("finish_reason"), choice.get("meta_info"), delta.get("tool_calls"),
        ]  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False
    return [text for text in texts if text] == [json.loads(f'"{_MARK}"')] and not any(says_more)
