"""An agent whose journal takes nothing any more: it ends and says so, and the next one finds what it left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fleet_agent.agent import Agent
from fleet_agent.assembly import assemble
from fleet_agent.config import AgentConfig
from fleet_agent.journal import JournalFailed
from fleet_protos import events as ev
from fleet_protos.lease import Lease
from fleet_protos.trial import EngineKind, EngineSpec, ErrorKind, Gang, Measure, Outcome, Simulation, TrialSpec

LIMIT_S = 60.0
ENGINE = EngineSpec(
    EngineKind.SIMULATED, "sim/model", gpus=8, ready_timeout_s=60.0, stop_timeout_s=1.0, simulation=Simulation(20.0, 1),
    gang=Gang(2, 1, "127.0.0.1:9", 60.0),  # it waits for a lead that never comes, without load
)  # fmt: skip
SPEC = TrialSpec("t-b1-v1", 1, "t", "t", "v", block=1, host="here", engine=ENGINE, measure=Measure(1, 1))


async def first(agent: Agent, kind: type) -> ev.Event:
    async for event in agent.events(0, Lease()):
        if isinstance(event.body, kind):
            return event
    raise AssertionError("the stream ended")


async def test_an_agent_that_can_journal_nothing_ends_and_the_next_one_ends_what_it_left(tmp_path: Path) -> None:
    config = AgentConfig(host="here", state=tmp_path, gpus=0, simulated_gpus=8)
    parts, stopping = await assemble(config), asyncio.Event()
    await parts.server.start()
    async with asyncio.timeout(LIMIT_S):
        running = asyncio.ensure_future(parts.agent.run(stopping))
        await asyncio.sleep(0)
        while not running.done():  # it restores what there is before it takes anything
            try:
                parts.agent.start(SPEC)
                break
            except Exception:  # noqa: BLE001 - it is starting
                await asyncio.sleep(0.05)
        await first(parts.agent, ev.ServerLaunched)
        parts.journal.close()
        parts.agent.cancel(SPEC.trial_id, 1, "enough")
        with pytest.raises(JournalFailed, match="this agent ends, and the next one opens it anew"):
            await running
        await parts.server.stop(grace=None)
        again = await assemble(config)
        await again.server.start()
        running = asyncio.ensure_future(again.agent.run(stopping))
        over = await first(again.agent, ev.TrialOver)
        stopping.set()
        await running
    assert isinstance(over.body, ev.TrialOver)
    assert (over.body.outcome, over.body.kind) == (Outcome.FAILED, ErrorKind.AGENT_RESTARTED)
    await again.server.stop(grace=None)
    again.journal.close()
