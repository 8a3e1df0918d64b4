"""Runs the load process on chosen cores and records what the machine did: CPU use and the size of
shards.
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
from fleet_agent.load.messages import LoadRequest
from fleet_agent.load.results.load_reply import LoadReply
from fleet_agent.load.workload.prompts import PromptDraw, salt
from fleet_protos.trial_types import Workload

SEED: Final = 1
SAMPLE_INTERVAL_S: Final = 0.05
TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds up to a moment: all that was not idle, what the hypervisor gave to other
    machines, and our server's.
    """

    unix_ns: int
    busy_s: float
    steal_s: float
    server_s: float

    @classmethod
    def now(cls, server: psutil.Process) -> CpuTimes:
        """Read them from /proc."""
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
    """Samples of the machine's CPU times during a run."""

    samples: list[CpuTimes]

    def mean_cores(self, from_unix_ns: int, duration_s: float) -> CpuTimes:
        """Return the mean cores in use between the samples nearest to both ends of a run.

        The fields hold cores in place of seconds, and `unix_ns` the nanoseconds between the
        samples.
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
        return min(self.samples, key=lambda sample: abs(sample.unix_ns - unix_ns))


@asynccontextmanager
async def watch_cpu(server: psutil.Process) -> AsyncIterator[CpuWatch]:
    """Sample the CPU times every SAMPLE_INTERVAL_S inside the block."""
    watch = CpuWatch([CpuTimes.now(server)])

    async def sample() -> None:
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            watch.samples.append(CpuTimes.now(server))

    async with asyncio.TaskGroup() as group:
        sampling = group.create_task(sample())
        try:
            yield watch
        finally:
            sampling.cancel()


class LoadClient:
    """A load process that is ready.

    From 16 requests at a time on it has two shards if it has two cores, else one.
    """

    def __init__(self, process: LoadProcess, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._runs = 0

    async def run(
        self, url: str, workload: Workload, *, warm: int = 0, raw: bool = False
    ) -> tuple[LoadReply, Path, int]:
        """Run once; return the reply, the path of the raw file (written only if `raw`) and the
        number of the run.

        Raises LoadError, and RuntimeError if a request failed.
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
        """Return the peak resident memory of each Ray worker, the largest first.

        Workers without a shard are small.
        """
        recorded = self._process.recorded
        members = processes_of_session(recorded.session_id) if recorded else ()
        return sorted(
            (peak for member in members if (peak := _peak_mb(member.pid)) is not None), reverse=True
        )


def _peak_mb(pid: int) -> float | None:
    """Return the peak of a Ray worker; None for any other process, and for one that has ended."""
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
    """Return the requests of a closed loop's raw file by the salt before their prompt.

    The truth server records requests by the same salt.
    """
    draw, rows = PromptDraw(workload.prompts, SEED, run), pq.read_table(path).to_pylist()
    names = ("sent_ns", "first_output_ns", "last_ns", "completion_tokens")
    return {
        salt(draw, row["request"]): MeasuredRequest(*(row[name] for name in names)) for row in rows
    }


def find_child(name: str) -> psutil.Process:
    """Return our child process of that name. Raises StopIteration if there is none."""
    return next(child for child in psutil.Process().children() if child.name() == name)


@asynccontextmanager
async def load_client(folder: Path, cores: frozenset[int]) -> AsyncIterator[LoadClient]:
    """Start the load process on those cores; it is ready inside the block."""
    async with load_process(folder, cores) as process:
        yield LoadClient(process, folder)
