"""Promises of the C parts of the load client: built once and by nobody else, done without where
there are none, in accord with Python.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import socket
import threading
import time
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.load.client import http_framing
from fleet_agent.load.client.fast_path import EventTemplate
from fleet_agent.load.client.native.library import (
    FOLDER_VARIABLE,
    Library,
    NativeAnswer,
    build_library,
    load_library,
)
from fleet_agent.load.client.native_reader import NativeReads, NativeSocketReader
from fleet_agent.load.client.received import RecordedReads
from tests.fakes import streams
from tests.fakes.native import FOLDER, need_compiler

EVENT = json.loads(streams.delta(content="text").removeprefix(b"data: "))
DATA = json.dumps(EVENT, separators=(",", ":"), ensure_ascii=False).encode()
SPOKEN = st.text(st.characters(exclude_categories=["Cs"]), max_size=4).map(str.encode)
TEXTS = SPOKEN | st.binary(max_size=4) | st.sampled_from([b'"', b"\\n"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    need_compiler()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "native"))
    return tmp_path / "native"


def loaded() -> Library | None:
    return load_library.__wrapped__()


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_it_is_built_once(folder: Path) -> None:
    first = build_library(folder)
    made = first.stat().st_mtime_ns
    assert (build_library(folder), first.stat().st_mtime_ns, list(folder.iterdir())) == (
        first,
        made,
        [first],
    )
    assert loaded() is not None


def test_what_others_could_have_written_is_built_anew(folder: Path) -> None:
    path = build_library(folder)
    path.write_bytes(b"somebody's")
    path.chmod(0o666)
    assert build_library(folder).read_bytes().startswith(b"\x7fELF")


def test_a_folder_that_others_may_write_to_holds_nothing_that_is_loaded(folder: Path) -> None:
    build_library(folder)
    folder.chmod(0o777)
    assert loaded() is None


@pytest.mark.parametrize(
    ("compiler", "told"),
    [
        (
            "echo 'cc: fatal error: no stdio.h' >&2; exit 1",
            "cc failed: cc: fatal error: no stdio.h",
        ),
        ("exit 3", "cc failed: exit code 3"),
        ("true", "file too short"),
    ],
)
def test_without_a_compiler_that_works_all_is_read_in_python_and_that_is_said(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    compiler: str,
    told: str,
) -> None:
    monkeypatch.setenv("CC", program(tmp_path / "cc", compiler))
    with caplog.at_level(logging.WARNING):
        assert loaded() is None
    assert "answers are read in Python" in caplog.text and told in caplog.text


def test_a_host_without_a_compiler_reads_in_python(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert loaded() is None
    assert "no C compiler (cc, gcc or clang) was found on PATH" in caplog.text


def test_nothing_is_built_where_no_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    assert loaded() is None


@lru_cache(1)
def in_c() -> Library:
    need_compiler()
    return Library(build_library(FOLDER))


@pytest.fixture(scope="module", autouse=True)
def built_before() -> None:
    in_c()  # outside of any one example's time


ESCAPES = st.sampled_from(
    [
        r"\"",
        r"\\",
        r"\/",
        r"\n",
        r"\t",
        r"\u00e9",
        r"\u20AC",
        r"\ud83d\uDE00",
        r"\ud83d",
        r"\udc00",
        r"\u12g4",
        r"\x",
        "\\",
        "a",
    ]
)


@given(st.lists(ESCAPES, min_size=1, max_size=6).map("".join))
def test_a_text_with_escapes_says_in_c_what_json_says_or_is_left_to_it(text: str) -> None:
    alike = EventTemplate.from_event(DATA)
    assert alike is not None
    content = alike.before + text.encode() + alike.after.removesuffix(b"\r\n")
    run = alike.read_run_in_c(
        in_c(), RecordedReads.from_pairs([(1, b"%x\r\n%b\r\n" % (len(content), content))]), 0, 0
    )
    try:
        said = json.loads(f'"{text}"')
        said.encode()
    except ValueError:
        said = None  # no JSON, or half of a pair
    assert (run.text, len(run.times_ns)) == (("", 0) if said is None else (said, 1))


@given(
    parts=st.lists(st.tuples(TEXTS, st.sampled_from([0, 0, 0, 0, 1, -1])), max_size=12),
    more=st.binary(max_size=30),
    cuts=st.lists(st.integers(0, 10_000), max_size=20),
)
def test_events_that_are_alike_are_the_same_in_c_and_in_python(
    parts: list[tuple[bytes, int]], more: bytes, cuts: list[int]
) -> None:
    alike = EventTemplate.from_event(DATA)
    assert alike is not None
    contents = [
        (alike.before + text + alike.after.removesuffix(b"\r\n"), wrong) for text, wrong in parts
    ]
    data = (
        b"".join(b"%x\r\n%b\r\n" % (len(content) + wrong, content) for content, wrong in contents)
        + more
    )
    if not data:
        return
    places = sorted({0, *(cut % len(data) for cut in cuts), len(data)})
    reads = RecordedReads.from_pairs((end, data[start:end]) for start, end in pairwise(places))
    there, in_python = (
        alike.read_run_in_c(in_c(), reads, 0, 0),
        alike.read_run_in_python(reads, 0, 0),
    )
    if in_python.text.isprintable() and "\u2028" not in data.decode(
        errors="replace"
    ):  # Python leaves odd spaces to JSON, C need not
        assert there.end >= in_python.end
        assert (there.times_ns[: len(in_python.times_ns)], there.text[: len(in_python.text)]) == (
            in_python.times_ns,
            in_python.text,
        )
    assert there.end <= len(data)


@given(
    texts=st.lists(st.binary(min_size=1, max_size=40), max_size=12),
    damage=st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 255)), max_size=2),
)
def test_the_end_of_a_watched_answer_is_found_where_python_finds_it(
    texts: list[bytes], damage: list[tuple[int, int]]
) -> None:
    content = bytearray(b"".join(map(streams.chunk, texts)) + streams.LAST_CHUNK)
    for place, byte in damage:
        content[place % len(content)] = byte
    expected = http_framing.ChunkedEnd(0, b"").feed(bytes(content))
    found = watched(bytes(content))
    if found == 2:
        assert expected == http_framing.ANSWER_AT_END
    elif expected == http_framing.ANSWER_AT_END:
        assert (
            damage and found == 1
        )  # Python's int() takes signs and spaces, which only the whole settles


def watched(content: bytes) -> int:
    """What a reader says of a connection on which that has come and nothing else."""
    call = in_c().call
    near, far = socket.socketpair()
    near.setblocking(False)
    reader = call.bf_reader_new()
    stream = call.bf_stream_add(reader, near.fileno(), 7)
    call.bf_stream_expect(stream, 0, 1 << 20)
    far.sendall(content)
    call.bf_reader_stop(reader)
    in_c().run(reader)
    buffer = ctypes.create_string_buffer(len(content))
    assert call.bf_stream_peek(stream, 0, buffer, len(content)) == len(content)
    found = int(call.bf_stream_watch(stream, 0))
    call.bf_stream_drop(stream)
    call.bf_reader_free(reader)
    near.close()
    far.close()
    return found


def test_reading_runs_of_every_length_keeps_no_memory_though_nothing_is_collected() -> None:
    alike = EventTemplate(b'data: {"text":"', b'"}\n\n\r\n')
    event = b'data: {"text":"abc"}\n\n'
    first = b"%x\r\n%s\r\n" % (len(event), event)
    gc.collect()
    gc.disable()
    try:
        before = len(gc.get_objects())
        for size in range(500):
            assert (
                alike.read_run_in_c(
                    in_c(), RecordedReads.from_pairs([(1, first + b"x" * size)]), 0, 0
                ).text
                == "abc"
            )
        kept = len(gc.get_objects()) - before
    finally:
        gc.enable()
    assert kept < 250, f"{kept} objects, of 500 runs"


def test_under_a_flood_of_answers_few_wait_to_be_copied() -> None:
    async def left() -> int:
        wire, turns = NativeSocketReader(in_c()), 0
        began = time.monotonic()
        while turns < 200:
            turns += time.monotonic() - began > 0.2  # by then they are being copied in each turn
            for _ in range(64):
                wire.copy_later(NativeReads(NativeAnswer(), wire))
            await asyncio.sleep(0)
        found = wire.uncopied
        wire.close()
        assert wire.uncopied == 0
        return found

    assert 0 < asyncio.run(left()) <= 64 * 10


class Heard:
    """An owner that notes that it was told, and may fail over it."""

    def __init__(self, told: list[int], number: int, all_told: asyncio.Event) -> None:
        self._told, self._number, self._all_told = told, number, all_told

    def on_data(self) -> None:
        self._told.append(self._number)
        if len(self._told) == 5:
            self._all_told.set()
        if self._number == 0:
            raise RecursionError("an error of our own")

    def on_complete(self) -> None:
        """Nobody answers here."""

    def on_closed(self, error: OSError | None) -> None:
        """Nobody closes here."""


def test_an_error_over_one_answer_keeps_no_news_from_the_others() -> None:
    async def run() -> tuple[list[int], list[str]]:
        told: list[int] = []
        errors: list[str] = []
        all_told = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(str(context["exception"])))
        wire, pairs = NativeSocketReader(in_c()), [socket.socketpair() for _ in range(5)]
        for number, (near, _) in enumerate(pairs):
            near.setblocking(False)
            assert wire.attach(near, Heard(told, number, all_told), None).expect_answer(0, 1 << 20)
        for _, far in pairs:
            far.sendall(b"something")
        await asyncio.wait_for(all_told.wait(), 30)
        wire.close()
        for _, far in pairs:
            far.close()
        return told, errors

    told, errors = asyncio.run(run())
    assert (sorted(told), errors) == ([0, 1, 2, 3, 4], ["an error of our own"])


def test_without_a_thread_to_read_in_no_wire_is_made_and_nothing_is_left_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def make() -> int:
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(
            OSError, match="the thread that reads sockets cannot be started: can't start new thread"
        ):
            NativeSocketReader(in_c())
        return len(os.listdir("/proc/self/fd")) - before

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert asyncio.run(make()) == 0
