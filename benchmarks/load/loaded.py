"""Owns runs of the load process on chosen cores, and what the machine did meanwhile: who used its
cores, and how large its shards were.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psutil
import pyarrow.parquet as pq

from benchmarks.load.errors import MeasuredRequest
from benchmarks.load.programs import load_process
from fleet_agent.host.processes import processes_of_session
from fleet_agent.load.load_process import LoadProcess
from fleet_agent.load.messages import LoadReply, LoadRequest
from fleet_agent.load.workload.prompts import PromptDraw, salt
from fleet_protos.trial_types import Workload

SEED: Final = 1
SAMPLE_INTERVAL_S: Final = 0.05
TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds of cores up to a moment: all that was not idle, what the hypervisor gave to other
    machines, and what our server used.
    """

    unix_ns: int
    busy_s: float
    steal_s: float
    server_s: float

    @classmethod
    def now(cls, server: psutil.Process) -> CpuTimes:
        """From /proc."""
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, irq, soft, steal = (
                int(word) / TICKS for word in file.readline().split()[1:9]
            )
        used = server.cpu_times()
        return cls(
            time.time_ns(), user + nice + system + irq + soft, steal, used.user + used.system
        )


@dataclass(slots=True)
class CpuWatch:
    """Looks at the machine while a run goes on."""

    samples: list[CpuTimes]

    def mean_cores(self, from_unix_ns: int, duration_s: float) -> CpuTimes:
        """Means between the looks nearest to both ends: cores in place of seconds of them, and the
        nanoseconds between.
        """
        first, last = self._nearest(from_unix_ns), self._nearest(from_unix_ns + duration_s * 1e9)
        wall_s = max(SAMPLE_INTERVAL_S, (last.unix_ns - first.unix_ns) / 1e9)
        shares = (
            (last.busy_s - first.busy_s),
            (last.steal_s - first.steal_s),
            (last.server_s - first.server_s),
        )
        return CpuTimes(last.unix_ns - first.unix_ns, *(share / wall_s for share in shares))

    def _nearest(self, unix_ns: float) -> CpuTimes:
        return min(self.samples, key=lambda look: abs(look.unix_ns - unix_ns))


@asynccontextmanager
async def watch_cpu(server: psutil.Process) -> AsyncIterator[CpuWatch]:
    """Look every LOOK_S while inside."""
    watch = CpuWatch([CpuTimes.now(server)])

    async def look() -> None:
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            watch.samples.append(CpuTimes.now(server))

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(look())
        try:
            yield watch
        finally:
            looking.cancel()


class LoadClient:
    """A load process that is ready. From 16 requests at a time on it has two shards where it has
    two cores, else one.
    """

    def __init__(self, process: LoadProcess, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._runs = 0

    async def run(
        self, url: str, workload: Workload, *, warm: int = 0, raw: bool = False
    ) -> tuple[LoadReply, Path, int]:
        """One run: the reply, its raw file if asked for, and its number. Raises LoadFailed, and
        RuntimeError when a request failed.
        """
        self._runs += 1
        path = self._folder / f"{workload.name}-{self._runs}.parquet"
        request = LoadRequest(
            url,
            workload,
            SEED,
            self._runs,
            sglang=False,
            flush=False,
            model="truth",
            parquet=str(path) if raw else "",
        )
        if warm:
            await self._process.warm(replace(request, requests=warm, parquet=""))
        reply = await self._process.run(request)
        if reply.requests_failed:
            raise RuntimeError(
                f"{reply.requests_failed} requests failed: {dict(reply.error_examples)}"
            )
        return reply, path, self._runs

    def shard_peaks_mb(self) -> list[float]:
        """The most memory that each worker of Ray has ever had resident, the largest first; those
        that carry no shard are small.
        """
        recorded = self._process.recorded
        members = processes_of_session(recorded.session_id) if recorded else ()
        return sorted(
            (peak for member in members if (peak := _peak_mb(member.pid)) is not None), reverse=True
        )


def _peak_mb(pid: int) -> float | None:
    """Of a worker of Ray; None for any other process, and for one that has gone."""
    try:
        if not psutil.Process(pid).name().startswith("ray::"):
            return None
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (psutil.NoSuchProcess, OSError):
        return None
    return next(
        (int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:")), None
    )


def read_requests(path: Path, workload: Workload, run: int) -> Mapping[str, MeasuredRequest]:
    """Each request of a closed loop's raw file by the salt before its prompt, as the truth server
    knows it.
    """
    draw, rows = PromptDraw(workload.prompts, SEED, run), pq.read_table(path).to_pylist()
    names = ("sent_ns", "first_output_ns", "last_ns", "completion_tokens")
    return {
        salt(draw, row["request"]): MeasuredRequest(*(row[name] for name in names)) for row in rows
    }


def find_child(name: str) -> psutil.Process:
    """The process of that name that we started. Raises StopIteration when there is none."""
    return next(child for child in psutil.Process().children() if child.name() == name)


@asynccontextmanager
async def load_client(folder: Path, cores: frozenset[int]) -> AsyncIterator[LoadClient]:
    """The load process, ready, on those cores."""
    async with load_process(folder, cores) as process:
        yield LoadClient(process, folder)
