"""Promises of a run's columns: what was put in comes out, in bounded memory, whatever the disk does
and whoever asks.
"""

from __future__ import annotations

import pickle
import random
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_agent.load.client.request_record import ErrorName, RequestRecord, Response
from fleet_agent.load.results.request_columns import MAX_NAMES, OTHER_NAME, Columns, ColumnsBuilder

COUNTS = st.none() | st.integers(0, 2**31 - 1)
TIMES = st.integers(1, 2**62)
KINDS = st.sampled_from(["", "", ErrorName.RESET, ErrorName.TIMEOUT])
TEXTS = st.sampled_from(["", "length", "stop", "tool_calls"])


@st.composite
def requests(draw: st.DrawFn) -> RequestRecord:
    times = array("q", draw(st.lists(TIMES, max_size=5)))
    tokens = (
        array("i", draw(st.lists(st.integers(0, 9), min_size=len(times), max_size=len(times))))
        if draw(st.booleans())
        else None
    )
    response = Response(
        draw(st.sampled_from([0, 200, 503])), times, tokens, draw(st.just(0) | TIMES), *(draw(COUNTS) for _ in range(4)),
        draw(st.integers(0, 99)), draw(st.booleans()), draw(TEXTS), error_kind=draw(KINDS),
    )  # fmt: skip
    digest = draw(st.text("0123456789abcdef", min_size=16, max_size=16))
    return RequestRecord(
        0, draw(TIMES), draw(st.just(0) | TIMES), digest, response, draw(st.integers(0, 99))
    )


RUNS = st.lists(requests(), max_size=12).map(
    lambda made: [replace(request, number=number) for number, request in enumerate(made)]
)


def answered(number: int, chunks: int, **fields: object) -> RequestRecord:
    times = array("q", range(1000 * number + 1, 1000 * number + 1 + chunks))
    response = Response(
        200,
        times,
        array("i", [1] * chunks),
        last_ns=1000 * number + chunks,
        completion_tokens=chunks,
    )
    return RequestRecord(
        number, 1000 * number, 1000 * number, "0" * 16, replace(response, **fields)
    )  # type: ignore[arg-type]


@settings(max_examples=50, deadline=None)
@given(RUNS)
def test_rows_come_out_as_they_were_put_in(run: list[RequestRecord]) -> None:
    assert Columns.from_requests(run).requests() == run


@settings(max_examples=50, deadline=None)
@given(RUNS, st.integers(1, 4), st.integers(0, 6), st.booleans())
def test_shards_that_are_joined_lose_nothing_whatever_was_on_disk_or_packed(
    tmp_path_factory: pytest.TempPathFactory,
    run: list[RequestRecord],
    shards: int,
    held: int,
    on_disk: bool,
) -> None:
    folder = tmp_path_factory.mktemp("run")
    parts = []
    for first in range(shards):
        builder = ColumnsBuilder(
            str(folder / "chunks" / f"{first}") if on_disk else "", held, piece_chunks=3
        )
        for request in run[first::shards]:
            builder.add(request)
        parts.append(
            pickle.loads(pickle.dumps(builder.build()))
        )  # as it goes from one process to another
    assert Columns.concatenate(parts).requests() == run


@settings(max_examples=50, deadline=None)
@given(RUNS, st.integers(-(2**61), 2**61))
def test_times_that_are_moved_forth_and_back_are_the_same(
    run: list[RequestRecord], by_ns: int
) -> None:
    columns = Columns.from_requests(
        [request for request in run if not moved_to_never(request, by_ns)]
    )
    assert columns.shifted(by_ns).shifted(-by_ns).requests() == columns.requests()


def moved_to_never(request: RequestRecord, by_ns: int) -> bool:
    """A time that becomes 0 would mean that it never was; no clock that is true by more than a
    nanosecond shows one.
    """
    return -by_ns in (
        request.intended_ns,
        request.sent_ns,
        request.response.first_output_ns,
        request.response.last_ns,
    )


def test_a_small_run_never_touches_the_disk(tmp_path: Path) -> None:
    builder = ColumnsBuilder(str(tmp_path / "chunks" / "0"))
    for number in range(1000):
        builder.add(answered(number, 200))
    assert not builder.build().spilled
    assert list(tmp_path.iterdir()) == []


def test_of_a_large_run_no_more_is_in_memory_than_the_limit_and_one_piece_and_in_the_end_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "chunks" / "0"
    builder = ColumnsBuilder(str(path), held_chunks=100, piece_chunks=50)
    for number in range(100):
        builder.add(answered(number, 10))
        assert 10 * (number + 1) - (path.stat().st_size // 12 if path.exists() else 0) <= 150
    columns = builder.build()
    assert (columns.rows, columns.chunks, columns.spilled) == (100, 1000, True)
    assert path.stat().st_size == 12 * 1000 and not any(piece.held for piece in columns.pieces)
    assert columns.requests() == [answered(number, 10) for number in range(100)]


def test_a_disk_that_takes_no_more_costs_memory_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    builder = ColumnsBuilder(str(tmp_path / "file" / "0"), held_chunks=10, piece_chunks=5)
    for number in range(20):
        builder.add(answered(number, 3))
    columns = builder.build()
    assert not columns.spilled
    assert columns.requests() == [answered(number, 3) for number in range(20)]


def test_a_large_run_without_a_disk_is_packed_to_a_third() -> None:
    builder, rng = ColumnsBuilder(held_chunks=20_000, piece_chunks=10_000), random.Random(1)
    for number in range(1000):
        times = [10**15 + number * 5_000_000]
        times += (times[0] + at for at in sorted(rng.randrange(10**9) for _ in range(199)))
        response = Response(
            200, array("q", times), array("i", [1] * 200), last_ns=times[-1], completion_tokens=200
        )
        builder.add(RequestRecord(number, 1, 1, "0" * 16, response))
    columns = builder.build()
    assert (columns.chunks, columns.spilled) == (200_000, False)
    assert len(pickle.dumps(columns)) < 12 * columns.chunks / 3 + 100 * columns.rows


def test_a_file_that_was_cut_is_told_and_not_read_as_fewer_chunks(tmp_path: Path) -> None:
    path = tmp_path / "0"
    builder = ColumnsBuilder(str(path), held_chunks=0, piece_chunks=1)
    builder.add(answered(0, 10))
    columns = builder.build()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(OSError, match="is shorter than the data written to it"):
        columns.requests()


def test_one_example_of_each_kind_of_error_is_kept() -> None:
    failed = [
        answered(number, 0, error_kind="reset", error_detail=f"words {number}")
        for number in range(3)
    ]
    assert Columns.from_requests(failed).error_examples == {"reset": "words 0"}
    joined = Columns.concatenate(
        [Columns.from_requests(failed[1:]), Columns.from_requests(failed[:1])]
    )
    assert joined.error_examples == {"reset": "words 1"}


def test_the_first_words_of_each_http_status_are_kept() -> None:
    failed = [
        answered(0, 0, status=status, error_kind="http_status", error_detail=f"words {number}")
        for number, status in enumerate([503, 503, 400])
    ]
    assert Columns.from_requests(failed).error_examples == {
        "http_status 503": "words 0",
        "http_status 400": "words 2",
    }


def test_a_server_that_makes_up_reasons_fills_no_table() -> None:
    run = [answered(number, 0, finish_reason=f"reason {number}") for number in range(1000)]
    reasons = [
        request.response.finish_reason
        for request in Columns.concatenate(
            [Columns.from_requests(run), Columns.from_requests(run[500:])]
        ).requests()
    ]
    assert set(reasons) == {f"reason {number}" for number in range(MAX_NAMES)} | {OTHER_NAME}


def test_nonsense_of_a_server_fits_into_a_row() -> None:
    [row] = Columns.from_requests(
        [answered(0, 1, finish_reason="\ud800" + "x" * 1000, verify_ct=10**20)]
    ).requests()
    assert (row.response.finish_reason, row.response.verify_ct) == ("?" + "x" * 99, 2**31 - 1)


def test_a_digest_that_is_none_is_refused_with_the_requests_number() -> None:
    with pytest.raises(
        ValueError, match="prompt digest 'abc' of request 7 must have 16 characters"
    ):
        ColumnsBuilder().add(replace(answered(7, 1), prompt_digest="abc"))
