"""Owns the raw file of a run: one Parquet row a request, wall time, written whole or not at all. Schema: docs/metrics.md."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from fleet_agent.load.records import Request

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


@dataclass(frozen=True, slots=True)
class RawFile:
    """A written file."""

    path: str
    sha256: str
    size_bytes: int


def write(path: Path, requests: Sequence[Request], metadata: Mapping[str, object]) -> RawFile:
    """Write the requests to `path` through a temporary file, flushed to disk and renamed. Raises OSError.

    `metadata` goes into the file's key-value metadata, beside benchfleet.schema_version.
    """
    keys = {f"benchfleet.{name}": str(value) for name, value in metadata.items()} | {"benchfleet.schema_version": SCHEMA_VERSION}
    content = _encode([_row(request) for request in requests], keys)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    _sync_folder(path.parent)
    return RawFile(str(path), sha256(content).hexdigest(), len(content))


def get_ready() -> None:
    """Encode an empty table, so that the first run does not pay for what pyarrow imports at its first use (pandas, where it is)."""
    _encode([], {})


def _encode(rows: list[dict[str, Any]], keys: Mapping[str, str]) -> memoryview:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA.with_metadata(keys)), sink, compression="zstd")
    return memoryview(sink.getvalue())


def _row(request: Request) -> dict[str, Any]:
    """Times that never came, and what the server did not say, are null."""
    response = request.response
    return {
        "request": request.number,
        "intended_ns": request.intended_ns,
        "sent_ns": request.sent_ns or None,
        "first_output_ns": response.first_output_ns or None,
        "last_ns": response.last_ns or None,
        "chunk_ns": response.chunk_ns,
        "chunk_tokens": response.chunk_tokens,
        "prompt_tokens": response.prompt_tokens,
        "completion_tokens": response.completion_tokens,
        "cached_tokens": response.cached_tokens,
        "verify_ct": response.verify_ct,
        "finish_reason": response.finish_reason or None,
        "error_kind": response.error_kind or None,
        "status": response.status or None,
        "prompt_digest": request.prompt_digest,
    }


def _sync_folder(folder: Path) -> None:
    """The rename itself must survive a power cut, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
