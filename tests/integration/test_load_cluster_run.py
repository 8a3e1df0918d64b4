"""Promises of a run from load hosts that needs no Ray: what their workers measured comes back
whole, on this host's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

from fleet_agent.load.client.request_body import LoadTarget
from fleet_agent.load.cluster.cluster_workers import ClusterWorkers
from fleet_agent.load.cluster.membership import Membership, MembershipFiles
from fleet_agent.load.cluster.shard_actor import ShardActor
from fleet_agent.load.results.request_columns import Columns
from fleet_agent.load.workers.local_workers import ShardResults
from fleet_agent.load.workers.shard_plan import ShardLimits, ShardPlan
from fleet_agent.load.workload.prompts import PromptDraw
from tests.fakes import streams
from tests.fakes.scripted_server import served

CHAT = streams.chat([" a", " b", " c"], tokens=9)
AHEAD_NS = 10**15  # of ours is the clock of each load host


class AheadShard(ShardActor):
    """A worker on a host whose clock shows another time."""

    def now_ns(self) -> int:
        return super().now_ns() + AHEAD_NS

    def begin(self, number: int, at_ns: int) -> None:
        super().begin(number, at_ns - AHEAD_NS)

    def run(self, number: int, plan: ShardPlan) -> Any:
        result = super().run(number, plan)
        return replace(
            result, start_ns=result.start_ns + AHEAD_NS, columns=result.columns.shifted(AHEAD_NS)
        )


@dataclass
class Method:
    """What is called on an actor, carried out in a thread."""

    call: Callable[..., Any]

    def options(self, **_: object) -> Method:
        return self

    def remote(self, *arguments: object) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(None, self.call, *arguments)


@dataclass
class Actor:
    shard: ShardActor = field(default_factory=AheadShard)

    def __getattr__(self, name: str) -> Method:
        return Method(getattr(self.shard, name))


class Threads:
    """A Ray as far as the crew sees it, whose actors live in threads of this process."""

    exceptions = SimpleNamespace(
        RayTaskError=type("RayTaskError", (Exception,), {}),
        RayError=type("RayError", (Exception,), {}),
    )
    util = SimpleNamespace(
        scheduling_strategies=SimpleNamespace(
            NodeAffinitySchedulingStrategy=lambda node, soft: node
        )
    )

    def nodes(self) -> list[dict[str, object]]:
        return [{"NodeName": name, "NodeID": name, "Alive": True} for name in ("load1", "load2")]

    def remote(self, **_: object) -> Callable[[type], SimpleNamespace]:
        return lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=Actor))


async def run(url: str, spill: Path) -> ShardResults:
    crew = ClusterWorkers(
        Threads(),
        Membership("trial", 1, "lead", "127.0.0.1", "127.0.0.1:9", hosts=("load1", "load2")),
        MembershipFiles(spill / "cluster"),
    )
    await crew.prepare_workers()
    whole = ShardPlan(
        LoadTarget(url, "m"), "chat", PromptDraw("builtin:chat", 1, 0), 9, requests=10, step=2, concurrency=1, users=2, timeout_s=5, limit_s=20,
        spill_folder=str(spill / "chunks"), limits=ShardLimits(chunks=0),
    )  # fmt: skip
    return await crew.run(1, [whole, replace(whole, first=1)])


async def test_a_far_run_comes_back_whole_on_our_clock_and_leaves_nothing_on_the_load_hosts(
    tmp_path: Path,
) -> None:
    with served((CHAT,)) as server:
        before_ns = perf_counter_ns()
        done = await run(server.url, tmp_path)
        after_ns = perf_counter_ns()
    columns = Columns.concatenate([result.columns for result in done.results])
    requests = columns.requests()
    assert [request.number for request in requests] == list(range(10))
    assert all(
        before_ns
        < request.intended_ns
        < request.sent_ns
        < request.response.first_output_ns
        < after_ns
        for request in requests
    )
    assert all(request.response.chunk_ns[-1] <= request.response.last_ns for request in requests)
    assert not columns.spilled
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 - nothing else runs here
    assert 0 < done.start_skew_s < 5
