"""Promises of the gathering of reads: streams in full flow share wake-ups, what has just begun or
ended waits for nobody.
"""

from __future__ import annotations

import ctypes
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from fleet_agent.load.client import native
from fleet_agent.load.client.native.library import (
    END,
    Library,
    NativeAnswer,
    StreamNews,
    build_library,
)
from tests.fakes.native import FOLDER, need_compiler

ROOT: Final = Path(__file__).resolve().parents[2]
NATIVE: Final = Path(native.__file__).parent
STREAMS: Final = 20
CHUNK: Final = b"a\r\n0123456789\r\n"
MS: Final = 1_000_000


def in_c() -> Library:
    need_compiler()
    return Library(build_library(FOLDER))


@pytest.mark.parametrize(
    ("elapsed_ms", "chunks", "gap_us", "gather_us"),
    [
        (10, 64, 5000, 1000),  # a quarter would be 1.25 ms
        (10, 64, 4000, 1000),
        (10, 320, 1000, 250),
        (10, 80, 500, 125),
        (10, 80, 399, 0),  # less than a wake-up is worth
        (10, 601, 500, 1000),  # so many that the thread is busy anyway
        (10, 600, 500, 125),
        (10, 0, 4000, 0),
        (0, 64, 4000, 0),
        (3_600_000, 1, 4000, 1000),
    ],
)
def test_reads_gather_for_a_quarter_of_the_time_between_two_chunks(
    elapsed_ms: int, chunks: int, gap_us: int, gather_us: int
) -> None:
    assert in_c().call.bf_gather_ns(elapsed_ms * MS, chunks, gap_us * 1000) == gather_us * 1000


def test_a_stream_is_read_at_once_until_it_flows_and_from_its_end_on(tmp_path: Path) -> None:
    need_compiler()
    sources = [
        str(ROOT / "tests/fakes/reader_sets.c"),
        *(str(NATIVE / name) for name in ("reader.c", "stream.c")),
    ]
    checks = [
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fno-sanitize-recover=all",
        "-fsanitize=address,undefined",
    ]
    subprocess.run(
        [
            "cc",
            "-g",
            "-O1",
            *checks,
            "-pthread",
            f"-I{NATIVE}",
            "-o",
            str(tmp_path / "sets"),
            *sources,
        ],
        check=True,
    )
    done = subprocess.run([str(tmp_path / "sets")], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


class Flow:
    """A reader that runs, and streams whose first chunks have come."""

    def __init__(self, call: Any, reader: int, thread: threading.Thread) -> None:
        self._call, self._reader, self._thread = call, reader, thread
        self.near: list[socket.socket] = []
        self.far: list[socket.socket] = []
        self.streams: list[int] = []
        for number in range(STREAMS):
            near, far = socket.socketpair()
            near.setblocking(False)
            self.near.append(near)
            self.far.append(far)
            stream = call.bf_stream_add(reader, near.fileno(), number)
            call.bf_stream_expect(stream, 0, 1 << 20)
            call.bf_stream_watch(stream, 0)
            self.streams.append(stream)

    @property
    def wakes(self) -> int:
        """How often the reader's thread has been asleep so far."""
        lines = Path(f"/proc/self/task/{self._thread.native_id}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))

    def reads(self) -> int:
        """All that were made; the streams begin anew."""
        many = 0
        for stream in self.streams:
            answer = NativeAnswer()
            self._call.bf_stream_take(stream, ctypes.byref(answer))
            many += int(answer.reads)
            self._call.bf_answer_free(ctypes.byref(answer))
        return many

    def ended(self, number: int, limit_s: float) -> bool:
        """Whether its end is told in that time."""
        until_s, told = time.monotonic() + limit_s, (StreamNews * STREAMS)()
        while time.monotonic() < until_s:
            many = self._call.bf_reader_news(self._reader, told, STREAMS)
            if any(one.key == number and one.what & END for one in told[:many]):
                return True
            time.sleep(0.001)
        return False

    def close(self) -> None:
        for stream, *links in zip(self.streams, self.near, self.far, strict=True):
            self._call.bf_stream_drop(stream)
            for link in links:
                link.close()


@contextmanager
def flow() -> Iterator[Flow]:
    library = in_c()
    reader = library.call.bf_reader_new()
    thread = threading.Thread(target=library.run, args=(reader,))
    thread.start()
    flowing = Flow(library.call, reader, thread)
    try:
        yield flowing
    finally:
        flowing.close()
        library.call.bf_reader_stop(reader)
        thread.join()
        library.call.bf_reader_free(reader)


def test_streams_in_full_flow_share_wake_ups_and_an_end_is_told_soon() -> None:
    with flow() as flowing:
        before, rounds = flowing.wakes, 100
        for _ in range(rounds):
            for far in flowing.far:
                far.sendall(CHUNK)
                time.sleep(0.0002)  # 5 in a millisecond, and one stream's at least 4 ms apart
        flowing.far[3].sendall(b"0\r\n\r\n")
        assert flowing.ended(3, 30.0)
        wakes, reads = flowing.wakes - before, flowing.reads()
        assert (
            reads > rounds * STREAMS * 0.5
        )  # else this machine was too busy for any of it to be seen
        assert wakes < 0.6 * reads, f"{wakes} wake-ups for {reads} reads"
