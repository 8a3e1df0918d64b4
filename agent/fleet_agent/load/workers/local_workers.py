"""Runs the shards of a run as Ray tasks on this host. `ClusterWorkers` runs them on other hosts."""

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
    """Holds what the shards of one run measured. All times use the clock of this host.

    `start_skew_s`: the longest possible time between the starts of two shards.
    `lags_ns`: how late the event loop of the relay woke up; empty without a relay.
    `notes`: texts for the raw file.
    """

    results: Sequence[ShardResult]
    start_skew_s: float = 0.0
    lags_ns: Sequence[int] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


class ShardWorkers(Protocol):
    """Runs shards in worker processes."""

    async def prepare_workers(self) -> None:
        """Let each worker import what a shard needs. Raises LoadError if a worker is missing."""
        ...

    def shard_count(self, users: int) -> int:
        """Return the number of shards for a closed loop of `users`. For an open loop,
        `users` is 0.
        """
        ...

    async def make_reachable(self, target: LoadTarget) -> LoadTarget:
        """Return the server with the address at which the shards reach it. Raises OSError or
        LoadError.
        """
        ...

    async def run(self, number: int, plans: Sequence[ShardPlan]) -> ShardResults:
        """Run the shards of run `number`. If a shard dies, the other shards are ended. Raises
        LoadError or RayError.
        """
        ...

    def cancel(self, number: int) -> None:
        """End run `number`. Its shards return their results, marked as cancelled. Does nothing if
        the run is over.
        """
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
        """Create the file that ends the shards of run `number`. A Ray task that is busy does not
        notice Ray's own cancellation.
        """
        self._cancel_path(number).touch()

    async def _await_shard(self, number: int, reference: Any) -> ShardResult:
        """Return the result of one shard. If the shard fails, end the other shards of the run and
        raise RayError.
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
    """Remove the cancel files that a killed load process left. They would end later runs with the
    same numbers.
    """
    for left in folder.glob(f"{_CANCEL}*"):
        left.unlink(missing_ok=True)


def require_all_results(
    results: Sequence[ShardResult | BaseException], ray: Any
) -> list[ShardResult]:
    """Return the results of all shards. Raises LoadError if a shard failed."""
    for result in results:
        if isinstance(result, ray.exceptions.RayTaskError):
            cause = task_error_cause(result)
            raise LoadError(f"the load cannot be sent: {cause}")
        if isinstance(result, ray.exceptions.RayError):
            error = type(result).__name__
            raise LoadError(f"a load task died: {error}")
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if isinstance(result, ShardResult)]


def task_error_cause(error: Any) -> str:
    """Return one line about the error that was raised inside a Ray task."""
    inner = getattr(error, "cause", None) or error
    return next(
        (line for line in reversed(str(inner).splitlines()) if line.strip()), type(inner).__name__
    )


async def _await_task(reference: Any) -> None:
    await reference
