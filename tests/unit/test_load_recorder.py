"""Promises of the raw file: whole or absent, its schema fixed, read by pandas and DuckDB as written."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest

from fleet_agent.load import recorder
from fleet_agent.load.records import Request, Response

GOOD = Request(0, 10, 11, "aa", Response(200, (20, 30), (1, 4), 31, 100, 5, 7, 2, finish_reason="length"))
BARE = Request(1, 12, 13, "bb", Response(200, (25,), None, 40, 90, 5, finish_reason="length"))
FAILED = Request(2, 14, 0, "cc", Response(error_kind="connect"))


@pytest.fixture
def raw(tmp_path: Path) -> recorder.RawFile:
    return recorder.write(tmp_path / "sub" / "run.parquet", [GOOD, BARE, FAILED], {"job": "j-1", "run": 3})


def test_the_digest_and_the_size_are_those_of_the_file(raw: recorder.RawFile) -> None:
    content = Path(raw.path).read_bytes()
    assert (sha256(content).hexdigest(), len(content)) == (raw.sha256, raw.size_bytes)


def test_nothing_but_the_file_is_left_beside_it(raw: recorder.RawFile) -> None:
    assert [path.name for path in Path(raw.path).parent.iterdir()] == ["run.parquet"]


def test_version_and_origin_are_in_the_files_metadata(raw: recorder.RawFile) -> None:
    metadata = pq.read_schema(raw.path).metadata
    told = {key: value for key, value in metadata.items() if key.startswith(b"benchfleet.")}
    assert told == {b"benchfleet.schema_version": b"1", b"benchfleet.job": b"j-1", b"benchfleet.run": b"3"}


def test_pandas_reads_what_was_written(raw: recorder.RawFile) -> None:
    frame = pd.read_parquet(raw.path)
    assert list(frame.columns) == recorder.SCHEMA.names
    assert [list(times) for times in frame["chunk_ns"]] == [[20, 30], [25], []]
    assert list(frame["chunk_tokens"][0]) == [1, 4]
    assert frame["sent_ns"].isna().tolist() == [False, False, True]
    assert frame["error_kind"].tolist()[2] == "connect"


def test_duckdb_computes_from_the_raw_times(raw: recorder.RawFile) -> None:
    question = "select request, first_output_ns - intended_ns, len(chunk_ns), verify_ct from read_parquet(?) order by request"
    with duckdb.connect() as database:
        assert database.execute(question, [raw.path]).fetchall() == [(0, 10, 2, 2), (1, 13, 1, None), (2, None, 0, None)]


def test_an_empty_run_is_a_readable_file(tmp_path: Path) -> None:
    assert len(pd.read_parquet(recorder.write(tmp_path / "empty.parquet", [], {}).path)) == 0


def test_a_file_that_cannot_be_written_leaves_none_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        recorder.write(tmp_path / "file" / "run.parquet", [GOOD], {})
