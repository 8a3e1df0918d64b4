"""Converts the columns of a run to Arrow without needless copies: the rows as one table, the chunks
piece by piece.

Only the load process imports this module.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from fleet_agent.load.results.chunk_store import ChunkPiece, Chunks
from fleet_agent.load.results.request_columns import DIGEST_CHARACTERS, SCALARS, Columns

_TYPES: Final = {"q": pa.int64(), "i": pa.int32(), "B": pa.uint8()}


def build_scalar_batch(columns: Columns) -> Any:
    """Return a batch with a column for each of `SCALARS`. Values are not changed: 0 and -1 do not
    become null.
    """
    return pa.RecordBatch.from_pydict(
        {name: _wrap_array(_TYPES[code], columns.scalars[name]) for name, code in SCALARS.items()}
    )


def build_digest_array(columns: Columns) -> Any:
    """Return the prompts' digests as an array of strings."""
    ends = array("i", range(0, DIGEST_CHARACTERS * (columns.rows + 1), DIGEST_CHARACTERS))
    return pa.StringArray.from_buffers(
        columns.rows, pa.py_buffer(ends), pa.py_buffer(columns.digests)
    )


def decode_texts(columns: Columns, name: str, codes: Any) -> Any:
    """Return the texts that the codes of the column `name` stand for. Code 0 becomes null."""
    return pa.array([None, *columns.names[name]], pa.string()).take(codes)


def good_gaps_ns(columns: Columns) -> Iterator[Any]:
    """Yield the times between neighbouring chunks of each successful request, piece by piece.
    Raises OSError if a piece cannot be read.
    """
    row = 0
    for piece in columns.pieces:
        rows = slice(row, row := row + piece.rows)
        if piece.chunks > 1:
            times = _times(piece.read())
            mask = _within_good_rows(
                columns.scalars["chunks"][rows], columns.scalars["error_kind"][rows], piece.chunks
            )
            yield pc.subtract(times[1:], times[:-1]).filter(mask)


def _within_good_rows(counts: array[int], failed: array[int], chunks: int) -> Any:
    """Return a mask with an entry for each pair of neighbouring chunks. It is True if both chunks
    belong to the same successful row.
    """
    kept = array("B", b"\1" * chunks)
    end = 0
    for count, code in zip(counts, failed, strict=True):
        if not count:
            continue
        begin, end = end, end + count
        kept[end - 1] = 0  # the next chunk belongs to another row
        if code:
            kept[begin:end] = array("B", bytes(count))
    return _wrap_array(pa.uint8(), kept)[: chunks - 1].cast(pa.bool_())


def chunk_lists(columns: Columns, row: int, piece: ChunkPiece) -> tuple[Any, Any]:
    """Return (times, tokens) of the chunks of a piece as arrays of lists, one list for each row.
    The piece begins at `row`.

    Raises OSError if the piece cannot be read.
    """
    chunks = piece.read()
    counts = columns.scalars["chunks"][row : row + piece.rows]
    reported = columns.scalars["tokens_reported"][row : row + piece.rows]
    times = _times(chunks)
    times = pc.add(times, piece.shift_ns) if piece.shift_ns else times
    reported_counts = (count * known for count, known in zip(counts, reported, strict=True))
    unknown = pc.equal(_wrap_array(pa.uint8(), reported), 0)
    return (
        pa.ListArray.from_arrays(_list_offsets(counts), times),
        pa.ListArray.from_arrays(
            _list_offsets(reported_counts), _wrap_array(pa.int32(), chunks.tokens), mask=unknown
        ),
    )


def _times(chunks: Chunks) -> Any:
    values = _wrap_array(pa.int64(), chunks.times_ns)
    return pc.cumulative_sum(values) if chunks.are_deltas else values


def _list_offsets(counts: Any) -> Any:
    return _wrap_array(pa.int32(), array("i", accumulate(counts, initial=0)))


def _wrap_array(kind: Any, values: array[int]) -> Any:
    """Return an Arrow array that uses the memory of `values` without a copy."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
