"""Builds the C programs of the benchmark, runs the truth server, and reads its records."""

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
    """Something that the benchmark needs is missing; the text says what, and how to install it."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How a truth server responds, in microseconds; 0 and 0 is as fast as the socket
    accepts data.
    """

    ttft_us: int = 50_000
    token_us: int = 5_000
    chunk: int = 1  # tokens of an event
    empty_every: int = 0  # each event with a multiple of this number has no text; 0: all have


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """One request as the server recorded it.

    CLOCK_MONOTONIC nanoseconds; each event's are of the moment before it was sent.
    """

    received_ns: int
    tokens: int
    sent_ns: tuple[int, ...]


@dataclass(slots=True)
class TruthServer:
    """A running truth server; `records` is filled once it has ended.

    Keys are the twelve characters before a prompt.
    """

    port: int
    records: Mapping[str, ServerRecord] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self.port}"


def build(folder: Path, name: str) -> Path:
    """Compile `name`.c; return the program. Raises MissingRequirement without a C compiler."""
    program = folder / name
    compiler = os.environ.get("CC", "cc")
    try:
        subprocess.run(
            [compiler, "-O2", "-Wall", "-Wextra", "-o", program, HERE / f"{name}.c"], check=True
        )
    except FileNotFoundError:
        raise MissingRequirement(
            f"no C compiler {compiler!r}: install one (Debian: apt install gcc libc6-dev) or set CC"
        ) from None
    return program


def pinned(core: int) -> Mapping[str, Any]:
    """Return the arguments of Popen that keep a process on one core, if there are several."""
    cores = sorted(os.sched_getaffinity(0)) or [0]
    chosen = cores[core % len(cores)]
    return {"preexec_fn": lambda: os.sched_setaffinity(0, {chosen})}


@contextmanager
def truth_server(program: Path, folder: Path, pace: Pace) -> Iterator[TruthServer]:
    """Run the server inside the block; after the block its records are filled."""
    record = folder / "truth.txt"
    words = [
        *(program, "--ttft-us", pace.ttft_us, "--token-us", pace.token_us),
        *("--chunk", pace.chunk, "--empty-every", pace.empty_every),
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
    """Yield each request by its key.

    Clients that put no salt before a prompt may send the same key twice; a repeated key gets its
    number.
    """
    seen: set[str] = set()
    for number, line in enumerate(record.read_text().splitlines()):
        key, received, tokens, _, *sent = line.split()
        key = key if key not in seen else f"{key}#{number}"
        seen.add(key)
        yield key, ServerRecord(int(received), int(tokens), tuple(map(int, sent)))


@asynccontextmanager
async def load_process(folder: Path, cores: frozenset[int]) -> AsyncIterator[LoadProcess]:
    """Start an agent's load process on those cores; it is ready inside the block.

    Only the start runs on those cores, so that processes started later run elsewhere.
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
    """Return the core for clients."""
    cores = sorted(os.sched_getaffinity(0))
    return frozenset({cores[CLIENT_CORE % len(cores)]})
