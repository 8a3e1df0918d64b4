"""Owns what the agent knows of its host while it runs: GPUs, fingerprint, memory before launches,
GPUs set aside. Ends no process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from fleet_agent.host import sysfs
from fleet_agent.host.clock import ClockWatch
from fleet_agent.host.fingerprint import read_fingerprint
from fleet_agent.host.gpu_memory import (
    UnreleasedMemory,
    find_unreleased,
    used_mib_by_gpu,
    wait_until_released,
)
from fleet_agent.host.gpus import GpuReading, Gpus
from fleet_agent.host.nvml import NvmlGpus
from fleet_protos.trial_types import EngineKind

log = logging.getLogger(__name__)

MEMORY_RELEASE_LIMIT_S = 30.0
_QUARANTINE_CHECK_S = 2.0


class HostState:
    """This host. Touched only on the agent's loop; what blocks is done in threads."""

    def __init__(
        self,
        gpus: Gpus | None = None,
        state: Path = Path(),
        memory_release_limit_s: float = MEMORY_RELEASE_LIMIT_S,
    ) -> None:
        self.gpus = gpus or NvmlGpus()
        self.state = state
        self.clock = ClockWatch()
        self._release_limit_s = memory_release_limit_s
        self._topology_text: str | None = None
        self._quarantined: dict[int, tuple[int, str]] = {}  # GPU → (MiB at its baseline, reason)
        self._changed = asyncio.Event()
        self.gpu_released = asyncio.Event()  # a GPU that was set aside is free again

    @property
    def quarantined(self) -> Mapping[int, str]:
        """GPUs that get no trial, each with the reason."""
        return {gpu: reason for gpu, (_, reason) in self._quarantined.items()}

    def uses_gpus(self, kind: EngineKind) -> bool:
        """Whether an engine's GPUs are those that are read here; those of a simulated one are only
        when they are recorded.
        """
        return kind is EngineKind.SGLANG or (kind is EngineKind.SIMULATED and self.gpus.is_recorded)

    async def read_gpus(self) -> GpuReading:
        """All GPUs now."""
        return await asyncio.to_thread(self.gpus.read)

    async def gpu_count(self) -> int:
        """GPUs that trials may use; those that the kernel driver shows when NVML does not answer."""
        return len((await self.read_gpus()).gpus) or (
            0 if self.gpus.is_recorded else await asyncio.to_thread(sysfs.driver_gpus)
        )

    async def fingerprint(self) -> dict[str, str]:
        """The host's identity, its stable facts and, as `now.…`, its volatile ones. The topology is
        read once: wires do not move.
        """
        if self._topology_text is None:
            self._topology_text = await asyncio.to_thread(self.gpus.topology_text)
        return (await asyncio.to_thread(read_fingerprint, self.gpus, self._topology_text)).facts()

    async def memory_baseline(self, kind: EngineKind, gpus: tuple[int, ...]) -> dict[int, int]:
        """MiB in use on each GPU of a launch that is about to be; empty for an engine without GPUs
        of this host.
        """
        return (
            used_mib_by_gpu(await self.read_gpus(), gpus) if gpus and self.uses_gpus(kind) else {}
        )

    async def wait_memory_released(self, baseline: Mapping[int, int]) -> tuple[str, ...]:
        """After a stop: wait for the memory to be back. What is not is set aside, and told one line
        a GPU.
        """
        left = (
            await wait_until_released(self.gpus, baseline, self._release_limit_s)
            if baseline
            else ()
        )
        for entry in left:
            self._quarantine(entry, baseline[entry.gpu])
        return tuple(map(str, left))

    async def watch_quarantined(self, stopping: asyncio.Event) -> None:
        """Give back each GPU that was set aside once its memory is back, until `stopping`."""
        while not stopping.is_set():
            if not self._quarantined:
                await _wait_first(self._changed, stopping)
                self._changed.clear()
                continue
            await self.release_recovered()
            await _wait_first(stopping, limit_s=_QUARANTINE_CHECK_S)

    async def release_recovered(self) -> None:
        """Give back what is free now; a GPU that does not tell stays aside."""
        before = {gpu: mib for gpu, (mib, _) in self._quarantined.items()}
        reading = await self.read_gpus()
        known = used_mib_by_gpu(reading, tuple(before))
        still = {entry.gpu for entry in find_unreleased(reading, before)}
        for gpu in [gpu for gpu in before if gpu in known and gpu not in still]:
            log.info("GPU%d is free again", gpu)
            del self._quarantined[gpu]
            self.gpu_released.set()

    # Inside

    def _quarantine(self, entry: UnreleasedMemory, baseline_mib: int) -> None:
        log.error("set aside: %s", entry)
        self._quarantined[entry.gpu] = (baseline_mib, str(entry))
        self.gpu_released.clear()
        self._changed.set()


async def _wait_first(*events: asyncio.Event, limit_s: float | None = None) -> None:
    """Returns when one of the events is set, or after `limit_s`."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
