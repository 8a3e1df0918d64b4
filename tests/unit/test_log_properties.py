"""Owns the promises of the log reader for all bytes: it never raises, chunks never matter, memory
and answers stay small.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_knowledge.server_log.log_reader import LogReader
from fleet_knowledge.server_log.parsing.redaction import LINE_LIMIT

FOLDER = Path(__file__).parent / "data" / "field"
LINES = [
    line
    for file in sorted(FOLDER.glob("[AB]*.json"))
    for line in str(json.loads(file.read_text())["input"]).encode().split(b"\n")
]
PIECES = st.one_of(
    st.sampled_from(LINES),
    st.binary(max_size=60),
    st.sampled_from((b"\r", b"\n", b"\x1b[1m", b"[2026-04-20 11:00:00 TP1] ", b"9" * 400)),
)
LOGS = st.lists(
    st.tuples(PIECES, st.sampled_from((b"\n", b"\n", b"\r", b"", b" "))), max_size=40
).map(lambda pairs: b"".join(a + b for a, b in pairs))


def told(chunks: list[bytes], *, peek: bool = False) -> str:
    reader = LogReader()
    for chunk in chunks:
        reader.feed(chunk)
        if peek:
            assert isinstance(reader.phase, str)
            assert len(reader.progress) == 2
    return json.dumps(reader.finish().to_json(), allow_nan=False)


@settings(max_examples=60, deadline=None)
@given(log=LOGS, cuts=st.lists(st.integers(0, 4000), max_size=12), peek=st.booleans())
def test_how_a_log_is_cut_never_changes_what_it_comes_to(
    log: bytes, cuts: list[int], peek: bool
) -> None:
    places = [0, *sorted({min(cut, len(log)) for cut in cuts}), len(log)]
    chunks = [log[begin:end] for begin, end in pairwise(places)]
    assert told(chunks, peek=peek) == told([log])


@settings(max_examples=60, deadline=None)
@given(log=st.binary(max_size=2000))
def test_any_bytes_are_read_without_an_error(log: bytes) -> None:
    assert json.loads(told([log]))["version"] == 1


@settings(max_examples=25, deadline=None)
@given(log=LOGS)
def test_byte_by_byte_is_like_all_at_once(log: bytes) -> None:
    assert told([log[at : at + 1] for at in range(len(log))]) == told([log])


@settings(max_examples=60, deadline=None)
@given(log=LOGS)
def test_a_cause_line_is_one_short_line(log: bytes) -> None:
    line = json.loads(told([log]))["cause_line"] or ""
    assert "\n" not in line and len(line) <= LINE_LIMIT + 1


@pytest.mark.parametrize(
    "line",
    [b"x" * 200_000, b"1" * 200_000, b"ab[2026-04-20 11:00:00 TP0] " * 9000],
    ids=["letters", "digits", "stamps"],
)
def test_a_line_without_end_is_cut_alike_in_any_chunks(line: bytes) -> None:
    log = line + b"\nRuntimeError: No CUDA GPUs are available\n"
    assert told([log[at : at + 777] for at in range(0, len(log), 777)]) == told([log])


def test_shapes_beyond_number_do_not_fill_memory() -> None:
    reader = LogReader()
    for number in range(30_000):
        word = number.to_bytes(3, "big").hex().translate(str.maketrans("0123456789", "ghijklmnop"))
        reader.feed(f"[2026-04-20 11:00:00 TP0] a line of its own kind {word}\n".encode())
    assert len(reader._actions) <= 8192
    assert sum(map(sys.getsizeof, reader._actions)) < 2_000_000
    reader.feed(b"RuntimeError: No CUDA GPUs are available\n")
    assert reader.finish().failure_class == "no_gpu"


def test_a_log_may_go_on_after_it_was_asked() -> None:
    reader = LogReader()
    reader.feed(b"[2026-04-20 11:00:00 TP0] Load weight begin. avail mem=9.00 GB\n")
    assert reader.finish().state == "starting"
    reader.feed(b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert reader.finish().failure_class == "oom_weights"
