"""Writes the raw data of a run to a Parquet file with one row per request, in wall time. A file is
written completely or not at all.

The schema is described in docs/metrics.md.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fleet_agent.load.results import arrow_tables
from fleet_agent.load.results.load_reply import ParquetFile
from fleet_agent.load.results.request_columns import NOT_REPORTED, Columns

SCHEMA_VERSION: Final = "1"
SCHEMA: Final = pa.schema(
    [
        pa.field("request", pa.int32(), nullable=False),
        pa.field("intended_ns", pa.int64(), nullable=False),
        pa.field("sent_ns", pa.int64()),
        pa.field("first_output_ns", pa.int64()),
        pa.field("last_ns", pa.int64()),
        pa.field("chunk_ns", pa.list_(pa.int64()), nullable=False),
        pa.field("chunk_tokens", pa.list_(pa.int32())),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("completion_tokens", pa.int32()),
        pa.field("cached_tokens", pa.int32()),
        pa.field("verify_ct", pa.int32()),
        pa.field("finish_reason", pa.string()),
        pa.field("error_kind", pa.string()),
        pa.field("status", pa.int32()),
        pa.field("prompt_digest", pa.string(), nullable=False),
    ]
)
# up to this size a run is sorted by request; a longer one is in the order in which requests ended
SORTED_CHUNKS: Final = 1 << 22
GROUP_CHUNKS: Final = 1 << 20  # of a row group, approximately
GROUP_ROWS: Final = 1 << 18
_NULL_VALUES: Final = {  # the value of each column that means null
    "sent_ns": 0,
    "first_output_ns": 0,
    "last_ns": 0,
    "status": 0,
    "prompt_tokens": NOT_REPORTED,
    "completion_tokens": NOT_REPORTED,
    "cached_tokens": NOT_REPORTED,
    "verify_ct": NOT_REPORTED,
}
_TEXTS: Final = ("finish_reason", "error_kind")


def write_parquet(path: Path, columns: Columns, metadata: Mapping[str, object]) -> ParquetFile:
    """Write the requests to `path`. Raises OSError.

    The data goes to a temporary file first, which is flushed to disk and then renamed. `metadata`
    becomes key-value metadata of the file, next to benchfleet.schema_version. At most one row group
    is held in memory, except for a run that is small enough to be sorted.
    """
    keys = {f"benchfleet.{name}": str(value) for name, value in metadata.items()} | {
        "benchfleet.schema_version": SCHEMA_VERSION
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    try:
        _encode(temporary, columns, keys)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size_bytes = os.fstat(file.fileno()).st_size
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return ParquetFile(str(path), digest, size_bytes)


def preload_parquet() -> None:
    """Encode an empty run, so that the first run need not wait for what pyarrow imports at its
    first use (pandas, if installed).
    """
    _encode(pa.BufferOutputStream(), Columns(), {})


def _encode(sink: Any, columns: Columns, keys: Mapping[str, str]) -> None:
    """Write the row groups one after another to a path or an Arrow stream."""
    with pq.ParquetWriter(
        sink, SCHEMA.with_metadata(keys), compression="zstd", use_dictionary=list(_TEXTS)
    ) as writer:
        for group in _row_groups(columns):
            writer.write_table(group)


def _row_groups(columns: Columns) -> Iterator[Any]:
    """Yield tables of the size of a row group. The rows are sorted by request if all rows fit in
    memory.
    """
    if columns.chunks > SORTED_CHUNKS:
        yield from _merge_batches(_batches(columns))
        return
    table = pa.Table.from_batches(_batches(columns), SCHEMA).sort_by("request").combine_chunks()
    rows = max(1, min(GROUP_ROWS, GROUP_CHUNKS * len(table) // max(1, columns.chunks)))
    yield from (table.slice(begin, rows) for begin in range(0, len(table), rows))


def _merge_batches(batches: Iterator[Any]) -> Iterator[Any]:
    """Join batches to tables of the size of a row group."""
    pending: list[Any] = []
    for batch in batches:
        pending.append(batch)
        if sum(len(one.column("chunk_ns").values) for one in pending) >= GROUP_CHUNKS:
            yield pa.Table.from_batches(pending)
            pending = []
    if pending:
        yield pa.Table.from_batches(pending)


def _batches(columns: Columns) -> Iterator[Any]:
    """Yield a batch for each piece of chunks, in the schema of the file. Raises OSError if a piece
    cannot be read.
    """
    scalars, digests, row = (
        arrow_tables.build_scalar_batch(columns),
        arrow_tables.build_digest_array(columns),
        0,
    )
    for piece in columns.pieces:
        part = scalars.slice(row, piece.rows)
        chunk_ns, chunk_tokens = arrow_tables.chunk_lists(columns, row, piece)
        arrays = {
            "request": part.column("number"),
            "chunk_ns": chunk_ns,
            "chunk_tokens": chunk_tokens,
            "prompt_digest": digests.slice(row, piece.rows),
            **{
                name: arrow_tables.decode_texts(columns, name, part.column(name)) for name in _TEXTS
            },
            **{
                name: _null_where(part.column(name), nothing)
                for name, nothing in _NULL_VALUES.items()
            },
        }
        yield pa.RecordBatch.from_arrays(
            [arrays[name] if name in arrays else part.column(name) for name in SCHEMA.names],
            schema=SCHEMA,
        )
        row += piece.rows


def _null_where(values: Any, nothing: int) -> Any:
    """Return `values` with null in place of each value that equals `nothing`."""
    return pc.if_else(pc.equal(values, nothing), pa.scalar(None, values.type), values)


def _sync_folder(folder: Path) -> None:
    """Flush the folder to disk, so that the renamed file survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
