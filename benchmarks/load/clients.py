"""Owns how each client of the benchmark is run against a truth server, and what it cost and said. Judges nobody."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow.parquet as pq

from benchmarks.load.errors import Measured
from benchmarks.load.programs import CLIENT_CORE, Missing, Truth, pinned
from fleet_agent.load.messages import LoadReply, LoadRequest
from fleet_agent.load.process import LoadProcess
from fleet_agent.load.prompts import Draw, salt
from fleet_protos.trial import Workload

RUST_LIMIT_S = 300
SEED = 1


@dataclass(frozen=True, slots=True)
class Load:
    """What a client is to do: `streams` at a time, `requests` in all, each of `tokens`."""

    streams: int
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What a client took for it."""

    tokens: int
    cpu_s: float
    wall_s: float

    @property
    def us_per_token(self) -> float:
        """Processor microseconds of a token."""
        return self.cpu_s * 1e6 / self.tokens


def floor(program: Path, truth: Truth, load: Load) -> Cost:
    """The least a client can do, in C."""
    words = [str(program), str(truth.port), str(load.streams), str(load.requests), str(load.tokens)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, **pinned(CLIENT_CORE))  # type: ignore[call-overload]
    said = json.loads(done.stdout)
    return Cost(said["tokens"], said["cpu_s"], said["wall_s"])


def rust_program() -> Path:
    """The Python of the environment that has SGLang's Rust client. Raises Missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "benchfleet/sglang-cpu"
    if not (cache / "bin/python").exists():
        raise Missing("SGLang's Rust client is not installed: python tests/real_sglang/environment.py makes its environment")
    return cache / "bin/python"


def rust(python: Path, truth: Truth, load: Load) -> Cost:
    """SGLang's Rust client, without its start: what it takes beyond a run of a single token a stream."""
    small, large = (_rust(python, truth, one) for one in (Load(load.streams, load.streams, 1), load))
    return Cost(large.tokens - small.tokens, large.cpu_s - small.cpu_s, large.wall_s)


def _rust(python: Path, truth: Truth, load: Load) -> Cost:
    tokenizer = python.parent.parent / "tiny-model"
    words = [
        python, "-m", "sglang.benchmark.rust_client", "--backend", "sglang-oai-chat", "--base-url", truth.url,
        "--dataset-name", "random-ids", "--model", "truth", "--tokenizer", tokenizer,
        "--num-prompts", load.requests, "--max-concurrency", load.streams,
        "--random-input-len", 16, "--random-output-len", load.tokens, "--random-range-ratio", 1, "--warmup-requests", 0,
    ]  # fmt: skip
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, timeout=RUST_LIMIT_S,
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, **pinned(CLIENT_CORE),  # type: ignore[call-overload]
    )
    if done.returncode:
        raise Missing(f"SGLang's Rust client failed: {(done.stderr or done.stdout).strip()[-800:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(load.requests * load.tokens, cpu_s, time.monotonic() - began)


class Ours:
    """The load process of an agent, with its Ray, on the client's core."""

    def __init__(self, process: LoadProcess, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._runs = 0

    @property
    def rss_mb(self) -> float:
        """Resident memory of the process that sends and the one that leads it, without Ray's own."""
        recorded = self._process.recorded
        assert recorded is not None
        ours = [one for one in _of_session(recorded.session_id) if "driver" in " ".join(one.cmdline()) or one.name().startswith("ray::")]
        return max((one.memory_info().rss for one in ours if one.name().startswith("ray::")), default=0) / 1e6

    async def run(self, truth: Truth, load: Load, api: str = "chat") -> tuple[LoadReply, Mapping[str, Measured], float]:
        """The reply, each request by its key, and the seconds from the order to the first request."""
        self._runs += 1
        workload = Workload(
            f"run{self._runs}", concurrency=load.streams, requests=load.requests, output_tokens=load.tokens, prompts="builtin:chat",
            api=api, request_timeout_s=120,
        )  # fmt: skip
        path = self._folder / f"{self._runs}.parquet"
        request = LoadRequest(truth.url, workload, SEED, self._runs, sglang=False, flush=False, model="truth", parquet=str(path))
        await self._process.warm(LoadRequest(truth.url, workload, SEED, requests=load.streams, sglang=False, flush=False, model="truth"))
        ordered_ns = time.perf_counter_ns()
        reply = await self._process.run(request)
        rows = pq.read_table(path).to_pylist()
        measured = dict(_measured(rows, Draw(workload.prompts, SEED, self._runs)))
        return reply, measured, (min(row["sent_ns"] for row in rows) - ordered_ns) / 1e9


def _measured(rows: list[dict[str, int]], draw: Draw) -> Iterator[tuple[str, Measured]]:
    for row in rows:
        yield salt(draw, row["request"]), Measured(row["intended_ns"], row["first_output_ns"], row["last_ns"], row["completion_tokens"])


def _of_session(session: int) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session:
                yield process
        except (ProcessLookupError, PermissionError):
            continue


@asynccontextmanager
async def ours(folder: Path) -> AsyncIterator[Ours]:
    """Our client, ready, on its core; whoever else starts processes meanwhile starts them elsewhere."""
    process, before = LoadProcess(), os.sched_getaffinity(0)
    cores = sorted(before)
    os.sched_setaffinity(0, {cores[CLIENT_CORE % len(cores)]})
    try:
        await process.start(folder)
    finally:
        os.sched_setaffinity(0, before)
    try:
        await process.wait_ready()
        yield Ours(process, folder)
    finally:
        await process.stop()
