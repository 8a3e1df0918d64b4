"""Owns the C programs of the benchmark: builds them, runs the truth server, and reads what it wrote
down. Judges nobody.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet_agent.load.load_process import LoadProcess

HERE = Path(__file__).parent
SERVER_CORE, CLIENT_CORE = 0, 1


class MissingRequirement(Exception):
    """Something that the benchmark needs is not here; says what, and how to get it."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a truth server answers. Microseconds; 0 and 0 is as fast as the socket takes it."""

    ttft_us: int = 50_000
    token_us: int = 5_000
    chunk: int = 1  # tokens of an event
    empty_every: int = 0  # every so manieth event has no text


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """One request as the server saw it. CLOCK_MONOTONIC nanoseconds, each event's in the moment
    before it was sent.
    """

    received_ns: int
    tokens: int
    sent_ns: tuple[int, ...]


@dataclass(slots=True)
class TruthServer:
    """A truth server that runs; `told` is filled when it has ended. Keys are the twelve characters
    before a prompt.
    """

    port: int
    records: Mapping[str, ServerRecord] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"


def build(folder: Path, name: str) -> Path:
    """The compiled program of `name`.c. Raises Missing without a C compiler."""
    program = folder / name
    compiler = os.environ.get("CC", "cc")
    try:
        subprocess.run(
            [compiler, "-O2", "-Wall", "-Wextra", "-o", program, HERE / f"{name}.c"], check=True
        )
    except FileNotFoundError:
        raise MissingRequirement(
            f"no C compiler {compiler!r}: install one (Debian: apt install gcc libc6-dev) or name it in CC"
        ) from None
    return program


def pinned(core: int) -> Mapping[str, Any]:
    """Arguments of Popen that keep a process on one core, where there are several."""
    cores = sorted(os.sched_getaffinity(0)) or [0]
    chosen = cores[core % len(cores)]
    return {"preexec_fn": lambda: os.sched_setaffinity(0, {chosen})}


@contextmanager
def truth_server(program: Path, folder: Path, pace: Pace) -> Iterator[TruthServer]:
    """The server while inside; afterwards it has told."""
    record = folder / "truth.txt"
    words = [
        program,
        "--ttft-us",
        pace.ttft_us,
        "--token-us",
        pace.token_us,
        "--chunk",
        pace.chunk,
        "--empty-every",
        pace.empty_every,
    ]
    process = subprocess.Popen(
        [*map(str, words), "--record", str(record)],
        stdout=subprocess.PIPE,
        text=True,
        **pinned(SERVER_CORE),
    )
    try:
        assert process.stdout is not None
        running = TruthServer(int(process.stdout.readline().split()[1]))
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    running.records = dict(_read_records(record))


def _read_records(record: Path) -> Iterator[tuple[str, ServerRecord]]:
    """Keys as they were sent; those of clients whose prompts begin with no salt of ours may be
    alike, and get their number.
    """
    seen: set[str] = set()
    for number, line in enumerate(record.read_text().splitlines()):
        key, received, tokens, _, *sent = line.split()
        key = key if key not in seen else f"{key}#{number}"
        seen.add(key)
        yield key, ServerRecord(int(received), int(tokens), tuple(map(int, sent)))


@asynccontextmanager
async def load_process(folder: Path, cores: frozenset[int]) -> AsyncIterator[LoadProcess]:
    """An agent's load process, ready, on those cores; whoever else starts processes meanwhile
    starts them elsewhere.
    """
    process, before = LoadProcess(), os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        await process.start(folder)
    finally:
        os.sched_setaffinity(0, before)
    try:
        await process.wait_ready()
        yield process
    finally:
        await process.stop()


def client_core() -> frozenset[int]:
    """The one of clients."""
    cores = sorted(os.sched_getaffinity(0))
    return frozenset({cores[CLIENT_CORE % len(cores)]})
