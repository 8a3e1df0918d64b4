"""Stores the chunks of requests in pieces, each for consecutive rows. Pieces are held in memory;
beyond a limit, older pieces go into a file or are compressed.
"""

from __future__ import annotations

import os
import zlib
from array import array
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from operator import sub
from typing import Final

# about the size of a piece: small enough that storing it does not block the loop for long
PIECE_CHUNKS: Final = 1 << 15
PIECE_ROWS: Final = 1 << 17
# chunks held in memory before the first piece goes into the file: small runs never touch the disk
HELD_CHUNKS: Final = 1 << 21
_ZLIB_LEVEL: Final = 1  # a piece is compressed during the run, in about 7 ms


@dataclass(frozen=True, slots=True)
class Chunks:
    """Holds the chunks of some rows, one row after another.

    `times_ns`: the time of each chunk in nanoseconds.
    `tokens`: the tokens of each chunk, only of rows whose tokens are known.
    `are_deltas`: True if each time after the first is the difference to the time before it.
    """

    times_ns: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[int] = field(default_factory=lambda: array("i"))
    are_deltas: bool = False

    def with_absolute_times(self, shift_ns: int = 0) -> Chunks:
        """Return the chunks with absolute times instead of differences. `shift_ns` is added to each
        time.
        """
        times_ns = array("q", accumulate(self.times_ns)) if self.are_deltas else self.times_ns
        if shift_ns:
            times_ns = array("q", [ns + shift_ns for ns in times_ns])
        return Chunks(times_ns, self.tokens)


@dataclass(frozen=True, slots=True)
class ChunkPiece:
    """Holds the chunks of `rows` consecutive rows.

    The chunks are in memory (`held`), compressed (`packed`), or in the file `path` from `offset`
    on. `shift_ns` must be added to each time.
    """

    rows: int
    chunks: int
    tokens: int  # number of chunks whose tokens are known
    held: Chunks | None = None
    packed: bytes = b""
    path: str = ""
    offset: int = 0
    shift_ns: int = 0

    def read(self) -> Chunks:
        """Return the chunks without the shift; their times may be differences. Raises OSError if
        the file is missing or too short.
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
            raise OSError(f"{self.path} is shorter than the data written to it")
        found.times_ns.frombytes(content[:times_bytes])
        found.tokens.frombytes(content[times_bytes:])
        return found

    def shifted(self, by_ns: int) -> ChunkPiece:
        """Return the same chunks with times `by_ns` later. Does not read the file."""
        return replace(self, shift_ns=self.shift_ns + by_ns)


class ChunkStore:
    """Collects chunks row by row.

    When more than `held_chunks` are in memory, the oldest pieces are appended to the file `path`.
    With an empty path, or on a full disk, these pieces stay in memory but are compressed: a chunk
    then takes 3 to 4 bytes instead of 12.
    """

    def __init__(
        self, path: str = "", held_chunks: int = HELD_CHUNKS, piece_chunks: int = PIECE_CHUNKS
    ) -> None:
        self._path = path
        self._held_chunks = held_chunks
        self._piece_chunks = piece_chunks
        self._pieces: list[ChunkPiece] = []
        self._spilled = 0  # the first pieces, which are in the file or packed
        self._held = 0  # chunks of the other pieces
        self._open = Chunks()
        self._rows = 0  # of the piece that is being filled

    def add(self, times_ns: array[int], tokens: array[int] | None) -> None:
        """Copy the chunks of one row into the store. `tokens` is None if the tokens are unknown."""
        self._open.times_ns.extend(times_ns)
        if tokens:
            self._open.tokens.extend(tokens)
        self._rows += 1
        if len(self._open.times_ns) >= self._piece_chunks or self._rows >= PIECE_ROWS:
            self._close()

    def finish(self) -> tuple[ChunkPiece, ...]:
        """Return all pieces in the order of their rows. If any piece is in the file or compressed,
        then all pieces are. The store must not be used afterwards.
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
        except OSError:  # the disk is full: keep the run and use more memory
            self._path = ""
            return None


def _pack(chunks: Chunks) -> bytes:
    """Compress the differences between times, then the tokens.

    To compress well, the bytes of each array are reordered: the first byte of every value, then the
    second byte of every value, and so on. Most bytes are zeros.
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
    """Append the chunks to the file and return their offset in it. The file and its folder are
    created if missing. Raises OSError.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "ab") as file:
        offset = file.seek(0, os.SEEK_END)
        file.write(memoryview(chunks.times_ns))
        file.write(memoryview(chunks.tokens))
    return offset
