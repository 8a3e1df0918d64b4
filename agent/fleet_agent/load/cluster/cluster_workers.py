"""Runs the shards of a run on load hosts: waits for the hosts, starts all shards at the same
moment, and names a host that was lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any, Final, TypeVar

from fleet_agent.load.client.request_body import LoadTarget
from fleet_agent.load.cluster.clock_offset import (
    ClockOffset,
    ClockSample,
    estimate_offset,
    spread_ns,
    to_our_clock,
)
from fleet_agent.load.cluster.membership import JOIN_LIMIT_S, Membership, MembershipFiles
from fleet_agent.load.cluster.relay_launcher import RelayLauncher
from fleet_agent.load.cluster.shard_actor import ShardActor
from fleet_agent.load.workers.local_workers import ShardResults, task_error_cause
from fleet_agent.load.workers.shard_plan import ShardPlan, ShardResult
from fleet_protos.errors import LoadError, first_error

log = logging.getLogger(__name__)

# samples of each clock before a run; a round trip takes about 1 ms, and the quickest counts
CLOCK_SAMPLES: Final = 20
# from the order to begin to the beginning: the order must reach all workers in that time
_START_DELAY_S: Final = 0.1
_PREPARE_LIMIT_S: Final = 60.0
_GRACE_S: Final = 30.0  # for results to arrive after the shard's own limit
_POLL_S: Final = 0.1
_ORDERS: Final = "orders"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Member:
    """Holds a worker on a load host."""

    host: str
    actor: Any

    def call(self, name: str, *arguments: int) -> Any:
        """Call a method of the worker that answers even while a run is in progress. Return the
        reference to the answer.
        """
        return getattr(self.actor, name).options(concurrency_group=_ORDERS).remote(*arguments)


class ClusterWorkers:
    """Implements ShardWorkers with Ray actors. Each actor stays on one load host."""

    def __init__(
        self,
        ray: Any,
        membership: Membership,
        files: MembershipFiles,
        join_limit_s: float = JOIN_LIMIT_S,
    ) -> None:
        self._ray = ray
        self._membership = membership
        self._join_limit_s = join_limit_s
        self._shards = membership.shards or len(membership.hosts)
        self._members: list[_Member] = []
        self._relays = RelayLauncher(membership.address, files)

    async def prepare_workers(self) -> None:
        """Wait for the load hosts, then for their workers. Raises LoadError that names the missing
        hosts.
        """
        nodes = await self._wait_for_hosts()
        actor = self._ray.remote(
            num_cpus=1, max_restarts=0, max_task_retries=0, concurrency_groups={_ORDERS: 4}
        )(ShardActor)
        pinned = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        for number in range(self._shards):
            host = self._membership.hosts[number % len(self._membership.hosts)]
            strategy = pinned(nodes[host], soft=False)
            self._members.append(
                _Member(host, actor.options(scheduling_strategy=strategy).remote())
            )
        await asyncio.gather(
            *(self._await_answer(member, member.actor.preload.remote()) for member in self._members)
        )

    def shard_count(self, users: int) -> int:
        """Return the number of workers, but at most the number of users."""
        return min(self._shards, users or self._shards)

    async def make_reachable(self, target: LoadTarget) -> LoadTarget:
        """Return the server as the load hosts reach it: through a relay if it listens on this
        host's loopback, otherwise unchanged.
        """
        return await self._relays.make_reachable(target)

    async def run(self, number: int, plans: Sequence[ShardPlan]) -> ShardResults:
        """Prepare all shards, measure their clock offsets, and start the shards at the same moment.
        Raises LoadError that names a lost host.
        """
        members = self._members[: len(plans)]
        limit_s = max(plan.limit_s for plan in plans) + _PREPARE_LIMIT_S + _GRACE_S
        try:
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
                # the spill folder is a path on this host
                working = [
                    group.create_task(
                        self._await_answer(
                            member, member.actor.run.remote(number, replace(plan, spill_folder=""))
                        )
                    )
                    for member, plan in zip(members, plans, strict=True)
                ]
                offsets = await self._begin(number, members)
        except TimeoutError:
            self.cancel(number)
            raise LoadError(
                f"the load hosts did not finish the run within its limit of {limit_s:.0f} s"
            ) from None
        except BaseExceptionGroup as failed:
            self.cancel(number)
            raise _pick_error(failed) from failed
        results = [task.result() for task in working]
        return await self._collect(results, members, offsets)

    def cancel(self, number: int) -> None:
        """Cancel the run on every worker. The order does not reach a lost worker, which ends at its
        own limit or with its node.
        """
        for member in self._members:
            member.call("cancel", number)

    async def _wait_for_hosts(self) -> Mapping[str, str]:
        """Wait until all load hosts have joined. Return Ray's node id of each."""
        try:
            async with asyncio.timeout(self._join_limit_s):
                while self._missing(known := self._alive()):  # noqa: ASYNC110 - Ray does not notify about new nodes
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            missing = ", ".join(self._missing(self._alive()))
            message = f"load hosts did not join within {self._join_limit_s:.0f} s: {missing}"
            hint = (
                "check the agents' logs there, and that those hosts can reach any port of this host"
            )
            raise LoadError(message, hint) from None
        return known

    def _alive(self) -> dict[str, str]:
        return {node["NodeName"]: node["NodeID"] for node in self._ray.nodes() if node["Alive"]}

    def _missing(self, known: Mapping[str, str]) -> list[str]:
        return [host for host in self._membership.hosts if host not in known]

    async def _begin(self, number: int, members: Sequence[_Member]) -> list[ClockOffset]:
        async with asyncio.timeout(_PREPARE_LIMIT_S):
            await asyncio.gather(
                *(
                    self._await_answer(member, member.call("await_prepared", number))
                    for member in members
                )
            )
            # one at a time: concurrent samples would slow each other down
            offsets = [await self._measure_offset(member) for member in members]
        at_ns = perf_counter_ns() + round(_START_DELAY_S * 1e9)
        for member, offset in zip(members, offsets, strict=True):
            member.call("begin", number, offset.theirs(at_ns))
        return offsets

    async def _measure_offset(self, member: _Member) -> ClockOffset:
        samples = []
        for _ in range(CLOCK_SAMPLES):
            asked_ns = perf_counter_ns()
            theirs_ns = await self._await_answer(member, member.call("now_ns"))
            samples.append(ClockSample(asked_ns, theirs_ns, perf_counter_ns()))
        return estimate_offset(samples)

    async def _await_answer(self, member: _Member, reference: Awaitable[T]) -> T:
        """Return the worker's answer. Raises LoadError that names the worker's host."""
        try:
            return await reference
        except self._ray.exceptions.RayTaskError as error:
            cause = task_error_cause(error)
            raise LoadError(f"load host {member.host} cannot send the load: {cause}") from error
        except self._ray.exceptions.RayError as error:
            cause = f"{type(error).__name__}: {task_error_cause(error)}"
            raise LoadError(f"load host {member.host} was lost: {cause}") from error

    async def _collect(
        self,
        results: Sequence[ShardResult],
        members: Sequence[_Member],
        offsets: Sequence[ClockOffset],
    ) -> ShardResults:
        began = [
            (result.start_ns, offset)
            for result, offset in zip(results, offsets, strict=True)
            if result.start_ns
        ]
        notes = {
            # request n was sent by the host at position n modulo their number
            "load_hosts": ",".join(member.host for member in members),
            "clock_offset_ns": ",".join(str(offset.offset_ns) for offset in offsets),
            "clock_uncertainty_ns": ",".join(str(offset.uncertainty_ns) for offset in offsets),
            "start_skew_ns": str(spread_ns(began)),
        }
        log.info("run from %s: %s", notes["load_hosts"], notes)
        ours = [
            replace(result, columns=to_our_clock(result.columns, offset))
            for result, offset in zip(results, offsets, strict=True)
        ]
        return ShardResults(ours, spread_ns(began) / 1e9, await self._relays.lags_ns(), notes)


def _pick_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to report when several shards failed: the first FleetError, if
    there is one.
    """
    chosen = first_error(group)
    if isinstance(chosen, TimeoutError):
        return LoadError(f"the load hosts were not ready to begin within {_PREPARE_LIMIT_S:.0f} s")
    return chosen
