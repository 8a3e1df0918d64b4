"""Splits a body into server-sent events, piece by piece. It accepts all forms that WHATWG defines:
any line ends, comments, and several data lines.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SseEvent:
    """Holds one server-sent event: its data, and the time of the read that completed the event."""

    ns: int
    data: bytes


class SseParser:
    """Parses one body. An incomplete event at the end is never returned."""

    __slots__ = ("_after_cr", "_rest")

    def __init__(self) -> None:
        self._rest = bytearray()  # an incomplete event; its end can only involve the last byte
        self._after_cr = False

    @property
    def is_between(self) -> bool:
        """Return whether the next byte begins an event."""
        return not self._rest and not self._after_cr

    def feed(self, ns: int, piece: bytes) -> list[SseEvent]:
        """Return the events that this piece completes, without those that have no data. Each byte
        is scanned only once, even in a long event.
        """
        if self._after_cr or b"\r" in piece:
            piece = self._plain(piece)
        rest: bytearray = self._rest
        body: bytes | bytearray = piece
        place = max(0, len(rest) - 1)
        if rest:
            rest += piece
            body = rest
        found: list[SseEvent] = []
        start = 0
        while (end := body.find(b"\n\n", place)) >= 0:
            data = _data_of(bytes(body[start:end]))
            if data:
                found.append(SseEvent(ns, data))
            start = place = end + 2
        if body is rest:
            del rest[:start]
        else:
            rest += piece[start:]
        return found

    def _plain(self, piece: bytes) -> bytes:
        """Replace each CRLF or CR by LF. If a CRLF is split over two pieces, its LF is dropped from
        the second piece.
        """
        if not piece:
            return piece
        text = piece[1:] if self._after_cr and piece.startswith(b"\n") else piece
        self._after_cr = piece.endswith(b"\r")
        return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data_of(block: bytes) -> bytes:
    lines = [
        line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")
    ]
    return b"\n".join(lines)
