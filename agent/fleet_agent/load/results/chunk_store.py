"""Owns the chunks of requests, flattened: pieces of neighbouring rows, held in memory or, beyond a
limit, in a file or packed.
"""

from __future__ import annotations

import os
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from operator import sub
from typing import Final

PIECE_CHUNKS: Final = (
    1 << 15
)  # of a piece, about: small enough that putting it away does not hold up the loop for long
PIECE_ROWS: Final = 1 << 17
HELD_CHUNKS: Final = (
    1 << 21
    # held in memory as they are until the first piece goes into the file: small runs never touch the
    # disk
)
_ZLIB_LEVEL: Final = 1  # zlib's level: a piece is packed while the run goes on, in some 7 ms


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of some rows, one row after the other. Times are nanoseconds; `tokens` has those
    of rows where they are known, only.

    `in_steps`: each time but the first is told as the distance to the one before it.
    """

    times_ns: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[int] = field(default_factory=lambda: array("i"))
    are_deltas: bool = False

    def with_absolute_times(self) -> Chunks:
        """With the times themselves."""
        return (
            Chunks(array("q", accumulate(self.times_ns)), self.tokens) if self.are_deltas else self
        )


@dataclass(frozen=True, slots=True)
class ChunkPiece:
    """The chunks of the next `rows` rows: `held`, `packed`, or at `offset` of the file `path`.
    `shift_ns` is to be added to each time.
    """

    rows: int
    chunks: int
    tokens: int  # how many of them are told
    held: Chunks | None = None
    packed: bytes = b""
    path: str = ""
    offset: int = 0
    shift_ns: int = 0

    def read(self) -> Chunks:
        """The chunks, their times before the shift, perhaps in steps. Raises OSError when the file
        is gone or cut.
        """
        if self.held is not None:
            return self.held
        if self.packed:
            return _unpack(self.packed, self.chunks)
        found = Chunks()
        times_bytes, tokens_bytes = (
            self.chunks * found.times_ns.itemsize,
            self.tokens * found.tokens.itemsize,
        )
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            content = memoryview(file.read(times_bytes + tokens_bytes))
        if len(content) < times_bytes + tokens_bytes:
            raise OSError(f"{self.path} is shorter than what was written into it")
        found.times_ns.frombytes(content[:times_bytes])
        found.tokens.frombytes(content[times_bytes:])
        return found

    def shifted(self, by_ns: int) -> ChunkPiece:
        """The same chunks, so much later; nothing is read for it."""
        return replace(self, shift_ns=self.shift_ns + by_ns)


class ChunkStore:
    """Collects chunks row by row.

    Beyond `held_chunks` the oldest pieces are appended to the file `path`. With an empty path, or
    on a disk that takes no more, they stay in memory, packed: a chunk takes 3 to 4 bytes there, and
    12 as it is.
    """

    def __init__(
        self, path: str = "", held_chunks: int = HELD_CHUNKS, piece_chunks: int = PIECE_CHUNKS
    ) -> None:
        self._path = path
        self._held_chunks = held_chunks
        self._piece_chunks = piece_chunks
        self._pieces: list[ChunkPiece] = []
        self._spilled = (
            0  # of the pieces that are done, those in the file or packed: they are the first
        )
        self._held = 0  # chunks of the others
        self._open = Chunks()
        self._rows = 0  # of the open piece

    def add(self, times_ns: Sequence[int], tokens: Sequence[int]) -> None:
        """One row's chunks. Takes 0.1 µs for each."""
        self._open.times_ns.extend(array("q", times_ns))
        self._open.tokens.extend(array("i", tokens))
        self._rows += 1
        if len(self._open.times_ns) >= self._piece_chunks or self._rows >= PIECE_ROWS:
            self._close()

    def finish(self) -> tuple[ChunkPiece, ...]:
        """All pieces, in the order of their rows; nothing may be added any more. Where some are put
        away, all are.
        """
        if self._rows:
            self._close()
        while 0 < self._spilled < len(self._pieces):
            self._spill_oldest()
        return tuple(self._pieces)

    def _close(self) -> None:
        chunks = self._open
        self._pieces.append(
            ChunkPiece(self._rows, len(chunks.times_ns), len(chunks.tokens), chunks)
        )
        self._held += len(chunks.times_ns)
        self._open, self._rows = Chunks(), 0
        while self._held > self._held_chunks:
            self._spill_oldest()

    def _spill_oldest(self) -> None:
        piece = self._pieces[self._spilled]
        self._pieces[self._spilled] = self._write_to_file(piece) or replace(
            piece, held=None, packed=_pack(piece.read())
        )
        self._spilled += 1
        self._held -= piece.chunks

    def _write_to_file(self, piece: ChunkPiece) -> ChunkPiece | None:
        if not self._path:
            return None
        try:
            return replace(
                piece, held=None, path=self._path, offset=_append(self._path, piece.read())
            )
        except OSError:  # the disk is full: a run that is under way is worth more than the memory
            self._path = ""
            return None


def _pack(chunks: Chunks) -> bytes:
    """Times as steps from one to the next, then tokens; of each the first bytes of all, then the
    second ones, and so on: most are zeros.
    """
    steps = array("q", map(sub, chunks.times_ns, chain((0,), chunks.times_ns)))
    return zlib.compress(_shuffle_bytes(steps) + _shuffle_bytes(chunks.tokens), _ZLIB_LEVEL)


def _unpack(packed: bytes, chunks: int) -> Chunks:
    content, times_bytes = zlib.decompress(packed), 8 * chunks
    steps, tokens = array("q"), array("i")
    steps.frombytes(_unshuffle_bytes(content[:times_bytes], steps.itemsize))
    tokens.frombytes(_unshuffle_bytes(content[times_bytes:], tokens.itemsize))
    return Chunks(steps, tokens, are_deltas=True)


def _shuffle_bytes(values: array[int]) -> bytes:
    content = values.tobytes()
    return b"".join(content[place :: values.itemsize] for place in range(values.itemsize))


def _unshuffle_bytes(content: bytes, size: int) -> bytearray:
    values, count = bytearray(len(content)), len(content) // size
    for place in range(size):
        values[place::size] = content[place * count : (place + 1) * count]
    return values


def _append(path: str, chunks: Chunks) -> int:
    """Write the chunks at the end of the file, which may have to be made with its folder; where
    they begin. Raises OSError.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "ab") as file:
        offset = file.tell()
        file.write(memoryview(chunks.times_ns))
        file.write(memoryview(chunks.tokens))
    return offset
