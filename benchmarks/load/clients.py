"""Runs each client of the benchmark against a truth server and measures its cost."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.load.errors import MeasuredRequest
from benchmarks.load.loaded import SEED, read_requests
from benchmarks.load.programs import (
    CLIENT_CORE,
    MissingRequirement,
    Pace,
    TruthServer,
    client_core,
    load_process,
    pinned,
    truth_server,
)
from fleet_agent.load.load_process import LoadProcess
from fleet_agent.load.messages import LoadRequest
from fleet_agent.load.results.load_reply import LoadReply
from fleet_agent.load.workload.slot_schedule import first_due_ns
from fleet_protos.trial_types import Workload

RUST_LIMIT_S = 300
SAMPLE_INTERVAL_S = 0.01


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a client: `streams` at a time, `requests` in all, each of `tokens`."""

    streams: int
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a client used for a load."""

    tokens: int
    cpu_s: float
    wall_s: float

    @property
    def us_per_token(self) -> float:
        """CPU microseconds per token."""
        return self.cpu_s * 1e6 / self.tokens


def run_c_client(program: Path, server: TruthServer, load: Load) -> Cost:
    """Run the minimal C client; its requests start as those of our client do."""
    gap_us = first_due_ns(1, load.streams) // 1000
    numbers = (server.port, load.streams, load.requests, load.tokens, gap_us)
    words = [str(program), *map(str, numbers)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, **pinned(CLIENT_CORE))
    result = json.loads(done.stdout)
    return Cost(result["tokens"], result["cpu_s"], result["wall_s"])


def find_rust_python() -> Path:
    """Return the Python of the environment that has SGLang's Rust client. Raises
    MissingRequirement.
    """
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "benchfleet/sglang-cpu"
    )
    if not (cache / "bin/python").exists():
        raise MissingRequirement(
            "SGLang's Rust client is not installed: run python tests/real_sglang/environment.py,"
            " which creates its environment"
        )
    return cache / "bin/python"


@dataclass(slots=True)
class CpuUsage:
    """Samples of a process's CPU seconds, each with its time in monotonic nanoseconds."""

    samples: list[tuple[int, float]]

    @classmethod
    def watch(cls, process: psutil.Process) -> CpuUsage:
        """Sample the process until it has ended."""
        samples: list[tuple[int, float]] = []
        while True:
            try:
                used = process.cpu_times()
            except psutil.NoSuchProcess:
                return cls(samples)
            if process.status() == psutil.STATUS_ZOMBIE:
                return cls(samples)
            samples.append((time.perf_counter_ns(), used.user + used.system))
            time.sleep(SAMPLE_INTERVAL_S)

    def between(self, from_ns: int, to_ns: int) -> float:
        """Return the CPU seconds that the process used in that time."""
        before = max((used for at, used in self.samples if at <= from_ns), default=0.0)
        return (
            min((used for at, used in self.samples if at >= to_ns), default=self.samples[-1][1])
            - before
        )


def run_rust_client(python: Path, program: Path, folder: Path, pace: Pace, load: Load) -> Cost:
    """Run SGLang's Rust client; the cost is from the first request that the server received to its
    last event.

    Raises MissingRequirement if the client is not installed or fails.
    """
    words = [
        *(python, "-m", "sglang.benchmark.rust_client", "--backend", "sglang-oai-chat"),
        *("--dataset-name", "random-ids", "--model", "truth"),
        *("--tokenizer", python.parent.parent / "tiny-model"),
        *("--num-prompts", load.requests, "--max-concurrency", load.streams),
        *("--random-input-len", 16, "--random-output-len", load.tokens),
        *("--random-range-ratio", 1, "--warmup-requests", 0),
        *("--output-file", folder / "rust.jsonl"),
    ]
    with truth_server(program, folder, pace) as server, (folder / "rust.log").open("w+") as log:
        process = psutil.Popen(
            [*map(str, words), "--base-url", server.url],
            stdout=log,
            stderr=log,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            **pinned(CLIENT_CORE),
        )
        usage = CpuUsage.watch(process)
        code = process.wait(RUST_LIMIT_S)
        log.seek(0)
        output = log.read()
    if code:
        raise MissingRequirement(f"SGLang's Rust client failed: {output.strip()[-800:]}")
    records = server.records.values()
    from_ns, to_ns = (
        min(one.received_ns for one in records),
        max(one.sent_ns[-1] for one in records),
    )
    return Cost(
        sum(one.tokens for one in records), usage.between(from_ns, to_ns), (to_ns - from_ns) / 1e9
    )


class Ours:
    """The load process of an agent, with its Ray, on the core for clients."""

    def __init__(self, process: LoadProcess, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._runs = 0

    @property
    def rss_mb(self) -> float:
        """Resident memory of the largest process that sends, in MB."""
        recorded = self._process.recorded
        assert recorded is not None
        workers = [
            one for one in _session_processes(recorded.session_id) if one.name().startswith("ray::")
        ]
        return max((one.memory_info().rss for one in workers), default=0) / 1e6

    async def run(
        self, server: TruthServer, load: Load, api: str = "chat"
    ) -> tuple[LoadReply, Mapping[str, MeasuredRequest], float]:
        """Return the reply, each request by its key, and the seconds from the order to the first
        request.
        """
        self._runs += 1
        workload = Workload(
            f"run{self._runs}",
            concurrency=load.streams,
            requests=load.requests,
            output_tokens=load.tokens,
            prompts="builtin:chat",
            api=api,
            request_timeout_s=120,
        )
        path = self._folder / f"{self._runs}.parquet"
        request = LoadRequest(
            server.url,
            workload,
            SEED,
            self._runs,
            sglang=False,
            flush=False,
            model="truth",
            parquet=str(path),
        )
        await self._process.warm(
            LoadRequest(
                server.url,
                workload,
                SEED,
                requests=load.streams,
                sglang=False,
                flush=False,
                model="truth",
            )
        )
        ordered_ns = time.perf_counter_ns()
        reply = await self._process.run(request)
        found = read_requests(path, workload, self._runs)
        return reply, found, (min(one.from_ns for one in found.values()) - ordered_ns) / 1e9


def _session_processes(session: int) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session:
                yield process
        except (ProcessLookupError, PermissionError):
            continue


@asynccontextmanager
async def ours(folder: Path) -> AsyncIterator[Ours]:
    """Start our client on the core for clients; it is ready inside the block."""
    async with load_process(folder, client_core()) as process:
        yield Ours(process, folder)
