"""Keeps the state of the host while the agent runs: GPUs, their memory, and the fingerprint."""

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
    """Reads the state of this host and keeps which GPUs are quarantined. Use it only on the agent's
    event loop: it runs blocking calls in threads.
    """

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
        self.gpu_released = asyncio.Event()  # a quarantined GPU is free again

    @property
    def quarantined(self) -> Mapping[int, str]:
        """The quarantined GPUs, which get no trial, with the reason for each GPU."""
        return {gpu: reason for gpu, (_, reason) in self._quarantined.items()}

    def uses_gpus(self, kind: EngineKind) -> bool:
        """Return whether servers of this kind use the GPUs that are read here.

        Simulated servers use these GPUs only if they are recorded.
        """
        return kind is EngineKind.SGLANG or (kind is EngineKind.SIMULATED and self.gpus.is_recorded)

    async def read_gpus(self) -> GpuReading:
        """Read the present state of all GPUs."""
        return await asyncio.to_thread(self.gpus.read)

    async def gpu_count(self) -> int:
        """Return how many GPUs trials may use.

        If NVML shows no GPU, return the number that the kernel driver shows.
        """
        return len((await self.read_gpus()).gpus) or (
            0 if self.gpus.is_recorded else await asyncio.to_thread(sysfs.driver_gpus)
        )

    async def fingerprint(self) -> dict[str, str]:
        """Return the host's identity, its stable facts, and its volatile facts as `now.NAME`.

        The topology is read only once, because it does not change.
        """
        if self._topology_text is None:
            self._topology_text = await asyncio.to_thread(self.gpus.topology_text)
        return (await asyncio.to_thread(read_fingerprint, self.gpus, self._topology_text)).facts()

    async def memory_baseline(self, kind: EngineKind, gpus: tuple[int, ...]) -> dict[int, int]:
        """Return the memory in use on each GPU, in MiB. Empty if servers of this kind do not use
        this host's GPUs.
        """
        return (
            used_mib_by_gpu(await self.read_gpus(), gpus) if gpus and self.uses_gpus(kind) else {}
        )

    async def wait_memory_released(self, baseline: Mapping[int, int]) -> tuple[str, ...]:
        """Wait until the GPU memory of a stopped server is released.

        Quarantine each GPU that still holds memory then. Return one line for each such GPU.
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
        """Watch the quarantined GPUs until `stopping` is set. Release each GPU once its memory is
        free again.
        """
        while not stopping.is_set():
            if not self._quarantined:
                await _wait_first(self._changed, stopping)
                self._changed.clear()
                continue
            await self.release_recovered()
            await _wait_first(stopping, limit_s=_QUARANTINE_CHECK_S)

    async def release_recovered(self) -> None:
        """Release each quarantined GPU that has its memory free again.

        A GPU that does not report its memory stays quarantined.
        """
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
        log.error("GPU%d is quarantined: %s", entry.gpu, entry)
        self._quarantined[entry.gpu] = (baseline_mib, str(entry))
        self.gpu_released.clear()
        self._changed.set()


async def _wait_first(*events: asyncio.Event, limit_s: float | None = None) -> None:
    """Wait until one of the events is set, at most `limit_s` seconds."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
