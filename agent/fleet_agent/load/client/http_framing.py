"""Finds the head, the chunks and the end of one HTTP/1.1 answer while it arrives. It never raises
and never interprets the content.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

_VERSION: Final = b"HTTP/1."
_SHOWN_BYTES: Final = 40  # of an answer that is not HTTP
_HEAD_LIMIT: Final = 64 * 1024
_LINE_LIMIT: Final = 4096
SWITCHED: Final = 101

HEAD: Final = "head"
CHUNKED: Final = "chunked"
LENGTH: Final = "length"
UNTIL_CLOSE: Final = "until_close"
ENDED: Final = "ended"
BROKEN: Final = "broken"

ANSWER_GOES_ON: Final = 0
ANSWER_AT_END: Final = 1
ANSWER_NEEDS_PARSING: Final = 2


class HttpFraming:
    """Parses one answer piece by piece. `state` is the part of the answer that comes next. `feed`
    returns the content in each piece.
    """

    __slots__ = ("_left", "_rest", "_skip", "_trailer", "keep_alive", "problem", "state", "status")

    def __init__(self) -> None:
        self.state = HEAD
        self.status = 0
        self.keep_alive = True
        self.problem = ""
        self._rest = b""
        self._left = 0  # content bytes left of this chunk or of the body
        self._skip = 0  # bytes left of the line end after a chunk
        self._trailer = False

    @property
    def is_between(self) -> bool:
        """Return whether the next byte begins a chunk."""
        return self.state == CHUNKED and not (
            self._left or self._skip or self._trailer or self._rest
        )

    def end_of_chunk(self, data: bytes, start: int) -> int:
        """Return the offset in `data` at which the current chunk ends. Return len(data) if the
        chunk does not end in `data`. Byte `start` must be the next byte to parse.
        """
        if self.state != CHUNKED or self._rest or self._trailer:
            return len(data)
        left = self._left + self._skip
        if not left:
            line = data.find(b"\r\n", start, start + _LINE_LIMIT)
            size = data[start:line].partition(b";")[0].strip() if line >= 0 else b""
            if not size or len(size) > 12 or size.strip(b"0123456789abcdefABCDEF"):
                return len(data)
            left = line + 2 - start + int(size, 16) + 2
        return min(len(data), start + left)

    def feed(self, data: bytes) -> list[bytes]:
        """Parse the next bytes of the connection. Return their content in order. If bytes follow
        the end of the answer, `state` becomes BROKEN.
        """
        if self.state == HEAD:
            data = self._read_head(data)
        if self.state == CHUNKED:
            return self._read_chunks(data)
        if self.state == LENGTH:
            return self._read_length(data)
        if self.state == UNTIL_CLOSE:
            return [data] if data else []
        if data and self.state == ENDED:
            self._break("the server sent bytes after the end of the answer")
        return []

    def next_chunk(self) -> tuple[int, bytes] | None:
        """Return where the next chunk begins, so that a `ChunkedEnd` can continue there.

        The first value is the number of bytes until the line with the size of that chunk. The
        second is the part of that line that has already arrived. Return None if the answer is not
        chunked, or if its last byte was the first of a line end.
        """
        if self.state != CHUNKED or self._trailer or (self._skip and self._rest):
            return None
        return self._left + self._skip, self._rest

    def close(self) -> bool:
        """Handle the end of the connection. Return whether the answer is complete."""
        if self.state == UNTIL_CLOSE:
            self.state = ENDED
        return self.state == ENDED

    def _break(self, problem: str) -> None:
        self.state, self.problem, self.keep_alive = BROKEN, problem, False

    def _read_head(self, data: bytes) -> bytes:
        rest = self._rest + data
        while self.state == HEAD:
            if not rest.startswith(_VERSION[: len(rest)]):
                self._break(_not_http(rest))
                return b""
            end = rest.find(b"\r\n\r\n")
            if end < 0:
                self._rest = rest
                if len(rest) > _HEAD_LIMIT:
                    self._break("the HTTP headers do not end within 64 KiB")
                return b""
            head, rest = _head(rest[:end]), rest[end + 4 :]
            self._rest = b""
            self.status, self.state, self.keep_alive, self._left = (
                head.status,
                head.state,
                head.keep_alive,
                head.left,
            )
            if head.problem:
                self._break(head.problem)
            if head.problem or self.status == SWITCHED:
                return b""
        return rest  # each interim answer (1xx) has a head of its own

    def _read_length(self, data: bytes) -> list[bytes]:
        content = data[: self._left]
        self._left -= len(content)
        if not self._left:
            self.state = ENDED
            if len(data) > len(content):
                self._break("the answer is longer than its content-length")
        return [content] if content else []

    def _read_chunks(self, data: bytes) -> list[bytes]:
        data = self._rest + data
        self._rest = b""
        content: list[bytes] = []
        at = 0
        while self.state == CHUNKED:
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                if piece:
                    content.append(piece)
                if self._left:
                    return content
            step = self._read_chunk_line(data, at)
            if step < 0:
                self._rest = data[at:]
                return content
            at += step
        if self.state == ENDED and at < len(data):
            self._break("the server sent bytes after the end of the answer")
        return content

    def _read_chunk_line(self, data: bytes, at: int) -> int:
        """Parse the line at `at`, which is between two chunks. Return the number of parsed bytes.
        Return -1 if the end of the line has not arrived.
        """
        end = data.find(b"\r\n", at)
        if end < 0:
            if len(data) - at > _LINE_LIMIT:
                self._break("the line with the size of a chunk does not end")
                return 0
            return -1
        line = data[at:end]
        if self._skip:
            self._skip = 0
            if line:
                self._break("a chunk is longer than its size")
        elif self._trailer:
            if not line:
                self.state = ENDED
        else:
            self._start_chunk(line)
        return end + 2 - at

    def _start_chunk(self, line: bytes) -> None:
        size = line.partition(b";")[0].strip()
        if not size or len(size) > 12 or size.strip(b"0123456789abcdefABCDEF"):
            self._break("the size of a chunk is not a hexadecimal number")
            return
        self._left = int(size, 16)
        self._trailer = self._left == 0
        self._skip = 2 if self._left else 0


class ChunkedEnd:
    """Finds the end of a chunked answer only from the sizes of its chunks.

    It cannot parse chunk extensions and trailers. It then returns ANSWER_NEEDS_PARSING, and
    HttpFraming must parse the answer.
    """

    __slots__ = ("_left", "_rest")

    def __init__(self, left: int, rest: bytes) -> None:
        self._left = left  # bytes to the end of the chunk, its line end included
        self._rest = rest  # the beginning of an incomplete size line

    def feed(self, data: bytes) -> int:
        """Parse the next bytes after the head of the answer. Return ANSWER_GOES_ON or
        ANSWER_AT_END. Return ANSWER_NEEDS_PARSING if only HttpFraming can find the end.
        """
        at = self._left
        if self._rest:
            data, self._rest = self._rest + data, b""
        size = len(data)
        while at < size:
            line = data.find(b"\r\n", at, at + _LINE_LIMIT)
            if line < 0:
                at, self._rest = size, data[at:]
                if len(self._rest) >= _LINE_LIMIT:
                    return ANSWER_NEEDS_PARSING
                break
            try:
                length = int(data[at:line], 16)
            except ValueError:
                return ANSWER_NEEDS_PARSING
            if length <= 0:
                return ANSWER_AT_END if data[line:] == b"\r\n\r\n" else ANSWER_NEEDS_PARSING
            at = line + 4 + length
        self._left = at - size
        return ANSWER_GOES_ON


class _Head(NamedTuple):
    """Holds what the head of an answer shows. `state` is how the answer ends, or HEAD if another
    head follows. `problem` is what is wrong with the head.
    """

    status: int = 0
    state: str = HEAD
    keep_alive: bool = True
    left: int = 0  # bytes of content, if the head gives a content-length
    problem: str = ""


@lru_cache(32)  # the heads of one server differ only in their date
def _not_http(data: bytes) -> str:
    beginning = data[:_SHOWN_BYTES].decode("latin-1")
    return f"not an HTTP/1.1 answer, it begins with {beginning!a}"


def _head(head: bytes) -> _Head:
    lines = head.split(b"\r\n")
    parts = lines[0].split(b" ", 2)
    if (
        len(parts) < 2
        or not parts[0].startswith(_VERSION)
        or not (parts[1].isdigit() and len(parts[1]) == 3)
    ):
        return _Head(problem=_not_http(head))
    status = int(parts[1])
    if status < 200:
        return _Head(status)
    pairs = (line.partition(b":") for line in lines[1:])
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    connection = headers.get(b"connection", b"").lower()
    keep_alive = (
        connection == b"keep-alive" if parts[0] == b"HTTP/1.0" else b"close" not in connection
    )
    if b"chunked" in headers.get(b"transfer-encoding", b"").lower():
        return _Head(status, CHUNKED, keep_alive)
    length = headers.get(b"content-length")
    if length is not None:
        if not length.isdigit() or len(length) > 15:
            return _Head(status, problem="the content-length of the answer is not a number")
        return _Head(status, LENGTH if int(length) else ENDED, keep_alive, int(length))
    return (
        _Head(status, ENDED, keep_alive)
        if status in (204, 304)
        else _Head(status, UNTIL_CLOSE, keep_alive=False)
    )
