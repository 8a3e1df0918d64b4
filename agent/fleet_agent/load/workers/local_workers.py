"""Runs the shards of a run as tasks of a Ray on this host. `ClusterWorkers` runs them on other
hosts.
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
# concurrent requests from which two workers share the load; with fewer, one loop is mostly idle
SPLIT_FROM_USERS: Final = 16


@dataclass(frozen=True, slots=True)
class ShardResults:
    """What the shards of one run measured, all on this host's clock. `start_skew_s` is the longest
    possible time between two of their starts.

    `lags_ns` are the loop lags of what stood between shards and server (a relay); `notes` go into
    the raw file.
    """

    results: Sequence[ShardResult]
    start_skew_s: float = 0.0
    lags_ns: Sequence[int] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


class ShardWorkers(Protocol):
    """The workers that run shards."""

    async def prepare_workers(self) -> None:
        """Make each worker import what a shard needs. Raises LoadError if a worker is missing."""
        ...

    def shard_count(self, users: int) -> int:
        """Return the number of shards for a closed loop of `users`; 0 means an open loop."""
        ...

    async def make_reachable(self, target: LoadTarget) -> LoadTarget:
        """Return the server with the address at which the shards reach it. Raises OSError,
        LoadError.
        """
        ...

    async def run(self, number: int, plans: Sequence[ShardPlan]) -> ShardResults:
        """Run the shards; when one dies, end the others. Raises LoadError, RayError."""
        ...

    def cancel(self, number: int) -> None:
        """End that run: its shards then return as cancelled. Does nothing if the run is over."""
        ...


class LocalWorkers:
    """Implements ShardWorkers with Ray tasks on this host."""

    def __init__(self, ray: Any, folder: Path) -> None:
        self._ray = ray
        self._folder = folder

    async def prepare_workers(self) -> None:
        task = self._ray.remote(max_retries=0, num_cpus=1)(shard.preload_shard)
        await asyncio.gather(*(_await_task(task.remote()) for _ in range(CORES)))

    def shard_count(self, users: int) -> int:
        return CORES if users >= SPLIT_FROM_USERS and len(os.sched_getaffinity(0)) >= CORES else 1

    async def make_reachable(self, target: LoadTarget) -> LoadTarget:
        return target

    async def run(self, number: int, plans: Sequence[ShardPlan]) -> ShardResults:
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
        """Implement ShardWorkers. A blocked Ray task does not notice a cancellation, so a file that
        appears ends it.
        """
        self._cancel_path(number).touch()

    async def _await_shard(self, number: int, reference: Any) -> ShardResult:
        """Return the result of one shard. If it has none, end the other shards of the run and raise
        RayError.
        """
        try:
            result: ShardResult = await reference
        except self._ray.exceptions.RayError:
            self.cancel(number)
            raise
        return result

    def _cancel_path(self, number: int) -> Path:
        return self._folder / f"{_CANCEL}{number}"


def remove_stale_cancels(folder: Path) -> None:
    """Remove the cancel files of a load process that was killed: they would end later runs with the
    same numbers.
    """
    for left in folder.glob(f"{_CANCEL}*"):
        left.unlink(missing_ok=True)


def require_all_results(
    results: Sequence[ShardResult | BaseException], ray: Any
) -> list[ShardResult]:
    """Return the results if no shard failed. Raises LoadError."""
    for result in results:
        if isinstance(result, ray.exceptions.RayTaskError):
            raise LoadError(f"the load cannot be sent: {task_error_cause(result)}")
        if isinstance(result, ray.exceptions.RayError):
            raise LoadError(f"a load task died: {type(result).__name__}")
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, ShardResult)]


def task_error_cause(error: Any) -> str:
    """Return the error that was raised inside a task, in one line."""
    inner = getattr(error, "cause", None) or error
    return next(
        (line for line in reversed(str(inner).splitlines()) if line.strip()), type(inner).__name__
    )


async def _await_task(reference: Any) -> None:
    await reference
