"""Owns where the shards of a run are carried out: as tasks of a Ray on this host alone. Another
crew, in `far_crew`, has other hosts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from fleet_agent.load.client.request_body import LoadTarget
from fleet_agent.load.workers import shard
from fleet_agent.load.workers.ray_session import CORES
from fleet_agent.load.workers.shard_plan import ShardPlan, ShardResult, with_cancel
from fleet_protos.errors import LoadError

_CANCEL: Final = "cancel-"
SPLIT_FROM_USERS: Final = (
    16  # concurrent requests from which two workers share the load; below, one loop is mostly idle
)


@dataclass(frozen=True, slots=True)
class ShardResults:
    """What the shards of one run measured, all on this host's clock. `start_skew_s`: how far apart
    they may have begun.

    `lags_ns`: of what stood between shards and server; `notes` go into the raw file.
    """

    results: Sequence[ShardResult]
    start_skew_s: float = 0.0
    lags_ns: Sequence[int] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


class ShardWorkers(Protocol):
    """Those who carry out shards."""

    async def prepare_workers(self) -> None:
        """Have each worker import what a shard needs. Raises LoadFailed when not all of them come."""
        ...

    def shard_count(self, users: int) -> int:
        """Into how many shards a closed loop of so many users goes; 0: an open loop."""
        ...

    async def make_reachable(self, target: LoadTarget) -> LoadTarget:
        """The server as the shards reach it. Raises OSError, LoadFailed."""
        ...

    async def run(self, number: int, plans: Sequence[ShardPlan]) -> ShardResults:
        """Carry out the shards; when one dies the others are ended. Raises LoadFailed, RayError."""
        ...

    def cancel(self, number: int) -> None:
        """End the run of that number, which then has cancelled shards; harmless when there is none."""
        ...


class LocalWorkers:
    """Ray tasks on this host."""

    def __init__(self, ray: Any, folder: Path) -> None:
        self._ray = ray
        self._folder = folder

    async def prepare_workers(self) -> None:
        """See `Crew`."""
        task = self._ray.remote(max_retries=0, num_cpus=1)(shard.preload_shard)
        await asyncio.gather(*(_await_task(task.remote()) for _ in range(CORES)))

    def shard_count(self, users: int) -> int:
        """See `Crew`."""
        return CORES if users >= SPLIT_FROM_USERS and len(os.sched_getaffinity(0)) >= CORES else 1

    async def make_reachable(self, target: LoadTarget) -> LoadTarget:
        """See `Crew`."""
        return target

    async def run(self, number: int, plans: Sequence[ShardPlan]) -> ShardResults:
        """See `Crew`."""
        path = self._cancel_path(number)
        task = self._ray.remote(max_retries=0, num_cpus=1)(shard.run_shard)
        shares = [
            self._await_shard(number, task.remote(with_cancel(plan, str(path)))) for plan in plans
        ]
        try:
            return ShardResults(
                require_all_results(
                    await asyncio.gather(*shares, return_exceptions=True), self._ray
                )
            )
        finally:
            path.unlink(missing_ok=True)

    def cancel(self, number: int) -> None:
        """See `Crew`. A Ray task that blocks hears of no cancel: a file that appears is what ends
        it.
        """
        self._cancel_path(number).touch()

    async def _await_shard(self, number: int, reference: Any) -> ShardResult:
        """One shard's result; when it has none the run's other shards are ended. Raises RayError."""
        try:
            result: ShardResult = await reference
        except self._ray.exceptions.RayError:
            self.cancel(number)
            raise
        return result

    def _cancel_path(self, number: int) -> Path:
        return self._folder / f"{_CANCEL}{number}"


def remove_stale_cancels(folder: Path) -> None:
    """Those of a load process that was killed while it ended its runs: they would end runs of the
    same numbers.
    """
    for left in folder.glob(f"{_CANCEL}*"):
        left.unlink(missing_ok=True)


def require_all_results(
    results: Sequence[ShardResult | BaseException], ray: Any
) -> list[ShardResult]:
    """The results, when none of the shards failed. Raises LoadFailed."""
    for result in results:
        if isinstance(result, ray.exceptions.RayTaskError):
            raise LoadError(f"the load cannot be sent: {task_error_cause(result)}")
        if isinstance(result, ray.exceptions.RayError):
            raise LoadError(f"load task died: {type(result).__name__}")
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, ShardResult)]


def task_error_cause(error: Any) -> str:
    """What was raised inside a task, in one line."""
    inner = getattr(error, "cause", None) or error
    return next(
        (line for line in reversed(str(inner).splitlines()) if line.strip()), type(inner).__name__
    )


async def _await_task(reference: Any) -> None:
    await reference
