"""Owns the chunks of requests, flattened: pieces of neighbouring rows, in memory or, beyond a limit, in a file. Interprets nothing."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

PIECE_CHUNKS: Final = 1 << 17  # of a piece, about: 1 MB of times, and half as much of tokens where they are known
PIECE_ROWS: Final = 1 << 17
HELD_CHUNKS: Final = 1 << 21  # held in memory until the first piece goes into the file: small runs never touch the disk


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of some rows, one row after the other. Times are nanoseconds; `tokens` has those of rows where they are known, only."""

    times_ns: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[int] = field(default_factory=lambda: array("i"))


@dataclass(frozen=True, slots=True)
class Piece:
    """The chunks of the next `rows` rows: `held`, or at `offset` of the file `path`. `shift_ns` is to be added to each time."""

    rows: int
    chunks: int
    tokens: int  # how many of them are told
    held: Chunks | None = None
    path: str = ""
    offset: int = 0
    shift_ns: int = 0

    def read(self) -> Chunks:
        """The chunks, their times before the shift. Raises OSError when the file is gone or cut."""
        if self.held is not None:
            return self.held
        found = Chunks()
        times_bytes, tokens_bytes = self.chunks * found.times_ns.itemsize, self.tokens * found.tokens.itemsize
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            content = memoryview(file.read(times_bytes + tokens_bytes))
        if len(content) < times_bytes + tokens_bytes:
            raise OSError(f"{self.path} is shorter than what was written into it")
        found.times_ns.frombytes(content[:times_bytes])
        found.tokens.frombytes(content[times_bytes:])
        return found

    def shifted(self, by_ns: int) -> Piece:
        """The same chunks, so much later; nothing is read for it."""
        return replace(self, shift_ns=self.shift_ns + by_ns)


class Pieces:
    """Collects chunks row by row.

    Beyond `held_chunks` the oldest pieces are appended to the file `path`; an empty path, or a disk that takes no more: all stay in memory.
    """

    def __init__(self, path: str = "", held_chunks: int = HELD_CHUNKS, piece_chunks: int = PIECE_CHUNKS) -> None:
        self._path = path
        self._held_chunks = held_chunks
        self._piece_chunks = piece_chunks
        self._done: list[Piece] = []
        self._kept = 0  # of the pieces that are done, those in the file: they are the first
        self._in_memory = 0  # chunks of the others
        self._open = Chunks()
        self._rows = 0  # of the open piece

    def add(self, times_ns: Sequence[int], tokens: Sequence[int]) -> None:
        """One row's chunks. Takes 0.1 µs for each."""
        self._open.times_ns.extend(array("q", times_ns))
        self._open.tokens.extend(array("i", tokens))
        self._rows += 1
        if len(self._open.times_ns) >= self._piece_chunks or self._rows >= PIECE_ROWS:
            self._close()

    def taken(self) -> tuple[Piece, ...]:
        """All pieces, in the order of their rows; nothing may be added any more. Where some are in the file, all are."""
        if self._rows:
            self._close()
        while self._path and 0 < self._kept < len(self._done):
            self._keep_oldest()
        return tuple(self._done)

    def _close(self) -> None:
        chunks = self._open
        self._done.append(Piece(self._rows, len(chunks.times_ns), len(chunks.tokens), chunks))
        self._in_memory += len(chunks.times_ns)
        self._open, self._rows = Chunks(), 0
        while self._path and self._in_memory > self._held_chunks:
            self._keep_oldest()

    def _keep_oldest(self) -> None:
        piece = self._done[self._kept]
        try:
            offset = _append(self._path, piece.read())
        except OSError:  # the disk is full: a run that is under way is worth more than the memory
            self._path = ""
            return
        self._done[self._kept] = replace(piece, held=None, path=self._path, offset=offset)
        self._kept += 1
        self._in_memory -= piece.chunks


def _append(path: str, chunks: Chunks) -> int:
    """Write the chunks at the end of the file, which may have to be made with its folder; where they begin. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "ab") as file:
        offset = file.tell()
        file.write(memoryview(chunks.times_ns))
        file.write(memoryview(chunks.tokens))
    return offset
