"""A real agent between attempts and controllers: an older one never takes the place of a newer one,
whatever comes late.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fleet_controller.app.bootstrap import start_controller
from fleet_controller.hosts.agent_client import AgentClient
from fleet_protos import events as ev
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import Conflict, Superseded
from fleet_protos.protocol_version import PROTOCOL
from fleet_protos.trial_types import (
    EngineKind,
    EngineSpec,
    Gang,
    Measure,
    Outcome,
    Simulation,
    TrialSpec,
)
from fleet_transport.sockets import listen_address
from tests.fakes.looks import eventually

LIMIT_S = 30.0
# where a member of a gang waits for its lead: a launch that goes on for as long as a test wants,
# without load
NOBODY = "127.0.0.1:9"
GANG = Gang(2, 1, NOBODY, 60.0)
SPEC = TrialSpec(
    "t-b1-v1", 1, "t", "t", "v", block=1, host="here",
    engine=EngineSpec(
        EngineKind.SIMULATED, "sim/model", gpus=8, ready_timeout_s=60.0, stop_timeout_s=1.0, simulation=Simulation(20.0, 1), gang=GANG
    ),
    measure=Measure(1, 1),
)  # fmt: skip


class RealAgent:
    """One agent process, and a client of it for each lease."""

    def __init__(self, state: Path, process: asyncio.subprocess.Process) -> None:
        self.address = listen_address(state, "agent")
        self.process = process
        self.clients: list[AgentClient] = []

    def client(self, epoch: int = 0, controller_id: str = "ours") -> AgentClient:
        client = AgentClient(self.address)
        client.controller_epoch = (
            ControllerEpoch(controller_id, epoch, PROTOCOL) if epoch else ControllerEpoch()
        )
        self.clients.append(client)
        return client


@asynccontextmanager
async def running(state: Path) -> AsyncIterator[RealAgent]:
    argv = (
        sys.executable,
        "-m",
        "fleet_agent.main",
        "--state",
        str(state),
        "--host-name",
        "here",
        "--gpus",
        "0",
        "--simulated-gpus",
        "8",
    )
    process = await asyncio.create_subprocess_exec(
        *argv, stderr=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    agent = RealAgent(state, process)
    try:
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    await agent.client().describe()
                    break
                except Exception:  # noqa: BLE001 - not there yet, in whatever way
                    await asyncio.sleep(0.1)
        yield agent
    finally:
        for client in agent.clients:
            await client.close()
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            await process.wait()


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[RealAgent]:
    async with running(tmp_path) as agent:
        yield agent


async def ends(client: AgentClient, agent_id: str, count: int) -> list[tuple[int, Outcome]]:
    """(attempt, outcome) of the first trials that are over, in the order in which they ended."""
    found = []
    async with asyncio.timeout(LIMIT_S):
        async for event in client.events(agent_id, 0):
            if isinstance(event.body, ev.TrialOver):
                found.append((event.attempt, event.body.outcome))
                if len(found) == count:
                    return found
    raise AssertionError("the stream ended")


async def refused(call: object) -> Conflict:
    with pytest.raises(Conflict) as raised:
        await call  # type: ignore[misc]
    return raised.value


async def test_a_newer_attempt_ends_the_older_one_and_an_older_one_comes_too_late(
    agent: RealAgent,
) -> None:
    client = agent.client()
    agent_id = (await client.describe()).agent_id
    newer = replace(SPEC, attempt=3)
    assert await client.start(SPEC) is False
    told = await refused(client.start(newer))
    assert not isinstance(told, Superseded)
    assert "attempt 1 is still ending on this host" in told.message
    assert await ends(client, agent_id, 1) == [(1, Outcome.CANCELLED)]
    await eventually(client.describe, lambda info: not info.active_trials)
    assert await client.start(newer) is False
    assert await client.start(newer) is True
    late = await refused(client.start(replace(SPEC, attempt=2)))
    assert isinstance(late, Superseded)
    assert "refused, because this host already has the newer attempt 3" in late.message
    assert await client.start(SPEC) is True, "that one is known: it has ended"
    assert (await client.describe()).active_trials == (f"{SPEC.trial_id}/3",)
    assert await client.cancel(SPEC.trial_id, 1, "late") is False
    assert await client.cancel(SPEC.trial_id, 3, "enough") is True
    assert await ends(client, agent_id, 2) == [(1, Outcome.CANCELLED), (3, Outcome.CANCELLED)]


async def test_the_fence_holds_over_a_restart_of_the_agent(tmp_path: Path) -> None:
    async with running(tmp_path) as agent:
        client = agent.client()
        await client.start(replace(SPEC, attempt=3))
    async with running(tmp_path) as agent:
        assert isinstance(await refused(agent.client().start(replace(SPEC, attempt=2))), Superseded)


async def test_a_controller_that_was_replaced_orders_nothing_and_hears_nothing_more(
    agent: RealAgent,
) -> None:
    old, new = agent.client(5), agent.client(6)
    agent_id = (await old.describe()).agent_id

    async def listen() -> None:
        async for _ in old.events(agent_id, 0):
            pass

    async with asyncio.timeout(LIMIT_S):
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(refused(listen()))
            await old.start(SPEC)
            await new.acknowledge(0)
        assert "another controller has taken this host over" in listening.result().message
    replaced = "this controller was replaced: it has epoch 5, and a controller with epoch 6 has been started on the same store"
    for order in (
        old.start(replace(SPEC, trial_id="other")),
        old.cancel(SPEC.trial_id, 1, "late"),
        old.acknowledge(1),
        old.release(SPEC.trial_id, 1),
        listen(),
    ):
        assert replaced in (await refused(order)).message
    assert (await old.describe()).active_trials == (f"{SPEC.trial_id}/1",)
    assert await new.cancel(SPEC.trial_id, 1, "enough") is True


async def test_two_controllers_never_share_a_host_and_the_second_waits_for_the_first(
    tmp_path: Path, agent: RealAgent
) -> None:
    async with start_controller(tmp_path / "one", [agent.address]) as one:
        await eventually(one.fleet.hosts, lambda hosts: hosts[0].state == "connected")
        async with start_controller(tmp_path / "two", [agent.address]) as two:
            told = await eventually(
                two.fleet.hosts, lambda hosts: "this host belongs to controller" in hosts[0].message
            )
            assert "which is connected" in told[0].message
            assert (await one.fleet.hosts())[0].state == "connected"
    async with start_controller(tmp_path / "two", [agent.address]) as two:
        await eventually(two.fleet.hosts, lambda hosts: hosts[0].state == "connected")
    async with start_controller(tmp_path / "one", [agent.address]) as one:
        await eventually(one.fleet.hosts, lambda hosts: hosts[0].state == "connected")


async def test_an_acknowledgement_meant_for_a_journal_that_is_gone_makes_the_new_one_forget_nothing(
    agent: RealAgent,
) -> None:
    client = agent.client(1)
    await client.start(SPEC)
    await client.cancel(SPEC.trial_id, 1, "enough")
    info = await eventually(
        client.describe, lambda info: not info.active_trials and info.last_sequence
    )
    assert (
        "its journal was re-created"
        in (await refused(client.acknowledge(info.last_sequence, "the one before"))).message
    )
    assert "has not stored" in (await refused(agent.client(1, "other").acknowledge(1))).message
    await client.acknowledge(info.last_sequence, info.agent_id)
    await agent.client(1, "other").acknowledge(1)


async def test_a_controller_that_does_not_know_what_the_host_owes_another_does_not_make_it_forget(
    agent: RealAgent,
) -> None:
    first, other = agent.client(1, "first"), agent.client(1, "other")
    await first.start(SPEC)
    told = await refused(other.acknowledge(1))
    assert "belongs to controller first, which has not stored 1 trial" in told.message
    assert await first.cancel(SPEC.trial_id, 1, "enough") is True
    await ends(agent.client(), (await first.describe()).agent_id, 1)
    info = await eventually(first.describe, lambda info: not info.active_trials)
    assert "has not stored" in (await refused(other.acknowledge(1))).message
    await first.acknowledge(info.last_sequence)
    await other.acknowledge(info.last_sequence)
