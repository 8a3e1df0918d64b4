"""Promises about load from other hosts that need no Ray: who is waited for, how the load is dealt
out, and how a shard begins and ends.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns

import pytest

from fleet_agent.core.gates import GATES, run_gates
from fleet_agent.core.run_facts import RunFacts
from fleet_agent.load.client.request_body import LoadTarget
from fleet_agent.load.cluster.cluster_workers import ClusterWorkers
from fleet_agent.load.cluster.membership import Membership, MembershipFiles
from fleet_agent.load.messages import LoadRequest
from fleet_agent.load.shard_planning import plan_shards
from fleet_agent.load.workers.shard import run_shard
from fleet_agent.load.workers.shard_plan import ShardPlan
from fleet_agent.load.workers.start_gate import StartGate
from fleet_agent.load.workload.prompts import PromptDraw
from fleet_protos.errors import LoadError
from fleet_protos.trial_types import GateEffect, Measure, Workload
from tests.fakes.scripted_server import SILENCE, served

FACTS = RunFacts(1, 0, {}, {"length": 1}, 9, 9, 0, 0.0, 0.0, 1.0, 0.0, 0.0, False, None, None)


@dataclass
class Gathered:
    """A Ray as far as the wait for load hosts sees it."""

    names: list[str] = field(default_factory=list)

    def nodes(self) -> list[dict[str, object]]:
        return [{"NodeName": name, "NodeID": name, "Alive": name != "dead"} for name in self.names]


def crew(
    *there: str, hosts: tuple[str, ...] = ("load1", "load2"), shards: int = 0
) -> ClusterWorkers:
    part = Membership("trial", 1, "lead", "127.0.0.1", "127.0.0.1:9", hosts=hosts, shards=shards)
    return ClusterWorkers(
        Gathered(list(there)), part, MembershipFiles(Path("/x")), join_limit_s=0.05
    )


async def test_load_hosts_that_do_not_join_are_named() -> None:
    with pytest.raises(LoadError, match=r"did not join within .*: load2$"):
        await crew("lead", "load1").prepare_workers()
    with pytest.raises(LoadError, match=r"load1, dead$"):
        await crew("dead", hosts=("load1", "dead")).prepare_workers()


@pytest.mark.parametrize(
    ("concurrency", "shards", "shares"),
    [(1, 0, [1]), (8, 0, [4, 4]), (8, 3, [3, 3, 2]), (2, 8, [1, 1])],
)
def test_users_are_dealt_out_to_all_shards_as_long_as_there_are_some(
    concurrency: int, shards: int, shares: list[int]
) -> None:
    workload = Workload(
        "w",
        concurrency=concurrency,
        requests=16,
        prompts="builtin:chat",
        output_tokens=1,
        request_timeout_s=5,
    )
    plans = plan_shards(
        LoadRequest("http://h", workload),
        LoadTarget("http://h"),
        warm=False,
        shard_count=crew(shards=shards).shard_count,
    )
    assert [plan.concurrency for plan in plans] == shares
    assert {plan.limit_s for plan in plans} == {16 // concurrency * 5 + 30}


def test_an_open_loop_goes_to_all_shards_in_turn() -> None:
    workload = Workload("w", rate_per_s=10, duration_s=2, prompts="builtin:chat", output_tokens=1)
    plans = plan_shards(
        LoadRequest("http://h", workload),
        LoadTarget("http://h"),
        warm=False,
        shard_count=crew(shards=2).shard_count,
    )
    assert [(plan.first, plan.step, plan.concurrency) for plan in plans] == [(0, 2, 0), (1, 2, 0)]


async def test_a_start_is_given_from_another_thread_and_says_when_all_is_prepared() -> None:
    start, order = StartGate(), []

    def give() -> None:
        start.await_prepared()
        order.append("prepared")
        start.begin(123)

    thread = threading.Thread(target=give)
    thread.start()
    order.append(str(await start.wait_to_begin()))
    thread.join()
    assert order == ["prepared", "123"]


async def test_who_waits_for_a_shard_that_ended_waits_no_longer_and_a_cancel_begins_it_too() -> (
    None
):
    start = StartGate()
    start.mark_ended()
    await asyncio.to_thread(start.await_prepared)
    start.cancel()
    assert await start.wait_to_begin() <= perf_counter_ns() and start.is_cancelled


def test_a_shard_ends_itself_at_its_limit_and_says_so() -> None:
    with served((SILENCE,)) as server:
        target, draw = LoadTarget(server.url, "m"), PromptDraw("builtin:chat", 1, 1)
        plan = ShardPlan(
            target, "chat", draw, 5, requests=1, concurrency=1, timeout_s=60, limit_s=0.2
        )
        result = run_shard(plan)
    assert result.expired and result.cancelled
    assert [request.response.error_kind for request in result.columns.requests()] == ["cancelled"]


def test_hosts_that_began_apart_flag_the_run_and_nothing_else_does() -> None:
    workload = Workload("w", rate_per_s=1, output_tokens=9)

    def codes(skew_s: float) -> list[str]:
        facts = RunFacts(
            **{**{name: getattr(FACTS, name) for name in FACTS.__slots__}, "start_skew_s": skew_s}
        )
        return [gate.code for gate in run_gates(facts, workload, Measure())]

    assert set(codes(0.021)) - set(codes(0.019)) == {"load_start_skew"}
    assert GATES["load_start_skew"] is GateEffect.FLAG
