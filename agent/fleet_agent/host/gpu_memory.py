"""Compares GPU memory before and after a launch, and names the processes that still hold it."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet_agent.host.gpus import GpuReading, Gpus
from fleet_agent.host.processes import read_stat
from fleet_knowledge.host.gpu import GpuProcess
from fleet_knowledge.host.gpu_processes import GpuMemoryHolder

TOLERANCE_MIB = 512  # what a driver keeps after a context is gone varies by up to this much
_FIRST_POLL_S, _LONGEST_POLL_S = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class UnreleasedMemory:
    """A GPU that uses `mib` MiB more than before the launch. `holders` are the processes that the
    driver lists on this GPU.
    """

    gpu: int
    mib: int
    holders: tuple[GpuMemoryHolder, ...] = ()

    def __str__(self) -> str:
        holders = (
            ", ".join(map(str, self.holders))
            or "no listed process (another container, or a driver that has not cleaned up)"
        )
        more = self.mib / 1024
        return (
            f"GPU{self.gpu} still holds {more:.1f} GiB more than before the launch, used by: "
            f"{holders}"
        )


def classify_holder(process: GpuProcess) -> GpuMemoryHolder:
    """Classify a process on a GPU as orphan, foreign, unseen or unknown, and find its user."""
    stat = read_stat(process.pid)
    if stat is None or not process.visible:
        return GpuMemoryHolder(process, "unseen" if not process.visible else "unknown")
    return GpuMemoryHolder(
        process,
        "orphan" if stat.parent == 1 and _is_server(process.name) else "foreign",
        _owner_name(process.pid),
    )


def used_mib_by_gpu(reading: GpuReading, indices: Sequence[int]) -> dict[int, int]:
    """Return the memory in use, in MiB, for each GPU index. GPUs that do not report their memory
    are left out.
    """
    return {
        gpu.index: gpu.memory_used_mib
        for gpu in reading.select(tuple(indices))
        if gpu.memory_used_mib is not None
    }


def find_unreleased(
    reading: GpuReading, baseline: Mapping[int, int], tolerance_mib: int = TOLERANCE_MIB
) -> tuple[UnreleasedMemory, ...]:
    """Return the GPUs that use more memory than their baseline (MiB) plus the tolerance."""
    now = used_mib_by_gpu(reading, tuple(baseline))
    over = {
        gpu: now[gpu] - before
        for gpu, before in baseline.items()
        if gpu in now and now[gpu] > before + tolerance_mib
    }
    return tuple(
        UnreleasedMemory(
            gpu,
            mib,
            tuple(classify_holder(process) for process in reading.processes if process.gpu == gpu),
        )
        for gpu, mib in over.items()
    )


async def wait_until_released(
    gpus: Gpus, baseline: Mapping[int, int], limit_s: float
) -> tuple[UnreleasedMemory, ...]:
    """Wait at most `limit_s` seconds until every GPU is back at its baseline. Return the GPUs that
    still use more memory then.

    This polls, because the kernel frees the memory of a dead process some time after the process
    has ended, and sends no notification.
    """
    loop = asyncio.get_running_loop()
    deadline_s, pause_s = loop.time() + limit_s, _FIRST_POLL_S
    while left := find_unreleased(await asyncio.to_thread(gpus.read), baseline):
        if loop.time() + pause_s > deadline_s:
            return left
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_POLL_S)
    return ()


def _is_server(name: str) -> bool:
    return "sglang" in name or "launch_server" in name or "scheduler" in name


def _owner_name(pid: int) -> str:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
