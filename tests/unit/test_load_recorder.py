"""Promises of the raw file: whole or absent, its schema fixed, read by pandas and DuckDB as
written.
"""

from __future__ import annotations

from array import array
from hashlib import sha256
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest

from fleet_agent.load.client.request_record import RequestRecord, Response
from fleet_agent.load.results import parquet_writer
from fleet_agent.load.results.load_reply import ParquetFile
from fleet_agent.load.results.request_columns import Columns, ColumnsBuilder

GOOD = RequestRecord(
    0,
    10,
    11,
    "a" * 16,
    Response(
        200, array("q", [20, 30]), array("i", [1, 4]), 31, 100, 5, 7, 2, finish_reason="length"
    ),
)
BARE = RequestRecord(
    1, 12, 13, "b" * 16, Response(200, array("q", [25]), None, 40, 90, 5, finish_reason="length")
)
FAILED = RequestRecord(2, 14, 0, "c" * 16, Response(error_kind="connect"))


@pytest.fixture
def raw(tmp_path: Path) -> ParquetFile:
    return parquet_writer.write_parquet(
        tmp_path / "sub" / "run.parquet",
        Columns.from_requests([FAILED, GOOD, BARE]),
        {"job": "j-1", "run": 3},
    )


def test_the_digest_and_the_size_are_those_of_the_file(raw: ParquetFile) -> None:
    content = Path(raw.path).read_bytes()
    assert (sha256(content).hexdigest(), len(content)) == (raw.sha256, raw.size_bytes)


def test_nothing_but_the_file_is_left_beside_it(raw: ParquetFile) -> None:
    assert [path.name for path in Path(raw.path).parent.iterdir()] == ["run.parquet"]


def test_version_and_origin_are_in_the_files_metadata(raw: ParquetFile) -> None:
    metadata = pq.read_schema(raw.path).metadata
    told = {key: value for key, value in metadata.items() if key.startswith(b"benchfleet.")}
    assert told == {
        b"benchfleet.schema_version": b"1",
        b"benchfleet.job": b"j-1",
        b"benchfleet.run": b"3",
    }


def test_pandas_reads_what_was_written(raw: ParquetFile) -> None:
    frame = pd.read_parquet(raw.path)
    assert list(frame.columns) == parquet_writer.SCHEMA.names
    assert [list(times) for times in frame["chunk_ns"]] == [[20, 30], [25], []]
    assert list(frame["chunk_tokens"][0]) == [1, 4]
    assert frame["sent_ns"].isna().tolist() == [False, False, True]
    assert frame["error_kind"].tolist()[2] == "connect"
    assert frame["prompt_digest"].tolist() == ["a" * 16, "b" * 16, "c" * 16]


def test_rows_are_in_the_order_of_the_requests_and_not_in_that_of_the_answers(
    raw: ParquetFile,
) -> None:
    assert pd.read_parquet(raw.path)["request"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("place", ["chunks/0", ""])
def test_a_run_that_was_too_large_for_memory_is_recorded_whole_in_groups_that_are_not(
    tmp_path: Path, place: str
) -> None:
    builder, chunks = ColumnsBuilder(str(tmp_path / place) if place else "", held_chunks=0), 4000
    times = array("q", range(100, 100 + chunks))
    for number in range(parquet_writer.SORTED_CHUNKS // chunks, -1, -1):
        tokens = array("i", [1] * chunks) if number % 2 else None
        builder.add(
            RequestRecord(
                number,
                10,
                11,
                f"{number:016x}",
                Response(200, times, tokens, 5000, 100, chunks, finish_reason="length"),
            )
        )
    columns = builder.build()
    assert columns.spilled == bool(place)
    path = parquet_writer.write_parquet(tmp_path / "run.parquet", columns, {}).path
    groups = [
        pq.ParquetFile(path).metadata.row_group(group).num_rows * chunks
        for group in range(pq.ParquetFile(path).num_row_groups)
    ]
    assert (
        sum(groups) == columns.chunks
        and len(groups) > 2
        and max(groups) < 1.2 * parquet_writer.GROUP_CHUNKS
    )
    with duckdb.connect() as database:
        told = "count(distinct request), count(chunk_tokens), sum(len(chunk_ns)), min(chunk_ns[1]), max(chunk_ns[4000])"
        rows = columns.rows
        assert database.execute(f"select {told} from read_parquet(?)", [path]).fetchone() == (
            rows,
            rows // 2,
            columns.chunks,
            100,
            4099,
        )
        assert database.execute(
            "select prompt_digest from read_parquet(?) where request = 77", [path]
        ).fetchone() == (f"{77:016x}",)


def test_duckdb_computes_from_the_raw_times(raw: ParquetFile) -> None:
    question = "select request, first_output_ns - intended_ns, len(chunk_ns), verify_ct from read_parquet(?) order by request"
    with duckdb.connect() as database:
        assert database.execute(question, [raw.path]).fetchall() == [
            (0, 10, 2, 2),
            (1, 13, 1, None),
            (2, None, 0, None),
        ]


def test_an_empty_run_is_a_readable_file(tmp_path: Path) -> None:
    assert (
        len(
            pd.read_parquet(
                parquet_writer.write_parquet(tmp_path / "empty.parquet", Columns(), {}).path
            )
        )
        == 0
    )


def test_a_file_that_cannot_be_written_leaves_none_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        parquet_writer.write_parquet(
            tmp_path / "file" / "run.parquet", Columns.from_requests([GOOD]), {}
        )


def test_a_run_whose_chunks_are_gone_leaves_no_file_behind(tmp_path: Path) -> None:
    builder = ColumnsBuilder(str(tmp_path / "chunks"), held_chunks=0)
    builder.add(GOOD)
    columns = builder.build()
    (tmp_path / "chunks").unlink()
    with pytest.raises(OSError):
        parquet_writer.write_parquet(tmp_path / "sub" / "run.parquet", columns, {})
    assert list((tmp_path / "sub").iterdir()) == []
