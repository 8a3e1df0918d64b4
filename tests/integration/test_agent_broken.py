"""An agent whose journal takes nothing any more: it ends and says so, and the next one finds what
it left.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet_agent.app.bootstrap import build_agent
from fleet_agent.app.config import AgentConfig
from fleet_agent.storage.journal import JournalFailed
from fleet_agent.trials.agent import Agent
from fleet_controller.hosts.agent_client import AgentClient
from fleet_protos import events as ev
from fleet_protos.controller_epoch import ControllerEpoch
from fleet_protos.errors import Conflict
from fleet_protos.trial_types import (
    EngineKind,
    EngineSpec,
    ErrorKind,
    Gang,
    Measure,
    Outcome,
    Phase,
    Simulation,
    TrialSpec,
)

LIMIT_S = 60.0
ENGINE = EngineSpec(
    EngineKind.SIMULATED, "sim/model", gpus=8, ready_timeout_s=60.0, stop_timeout_s=1.0, simulation=Simulation(20.0, 1),
    gang=Gang(2, 1, "127.0.0.1:9", 60.0),  # it waits for a lead that never comes, without load
)  # fmt: skip
SPEC = TrialSpec(
    "t-b1-v1", 1, "t", "t", "v", block=1, host="here", engine=ENGINE, measure=Measure(1, 1)
)


async def first(agent: Agent, kind: type) -> ev.Event:
    async for event in agent.events(0, ControllerEpoch()):
        if isinstance(event.body, kind):
            return event
    raise AssertionError("the stream ended")


async def started(agent: Agent, running: asyncio.Future[None]) -> None:
    """It restores what there is before it takes anything."""
    await asyncio.sleep(0)
    while not running.done():
        try:
            agent.start(SPEC)
            break
        except Conflict:  # it is starting
            await asyncio.sleep(0.05)


async def test_an_agent_that_can_journal_nothing_ends_and_the_next_one_ends_what_it_left(
    tmp_path: Path,
) -> None:
    config = AgentConfig(host="here", state=tmp_path, gpus=0, simulated_gpus=8)
    parts, stopping = await build_agent(config), asyncio.Event()
    await parts.server.start()
    async with asyncio.timeout(LIMIT_S):
        running = asyncio.ensure_future(parts.agent.run(stopping))
        await started(parts.agent, running)
        await first(parts.agent, ev.ServerLaunched)
        parts.journal.close()
        parts.agent.cancel(SPEC.trial_id, 1, "enough")
        with pytest.raises(JournalFailed, match="this agent stops, and its next process opens"):
            await running
        await parts.server.stop(grace=None)
        again = await build_agent(config)
        await again.server.start()
        running = asyncio.ensure_future(again.agent.run(stopping))
        over = await first(again.agent, ev.TrialOver)
        stopping.set()
        await running
    assert isinstance(over.body, ev.TrialOver)
    assert (over.body.outcome, over.body.kind) == (Outcome.FAILED, ErrorKind.AGENT_RESTARTED)
    assert "because its journal accepted no more records: it is closed" in over.body.message
    assert not (tmp_path / "stop-reason.txt").exists()
    await again.server.stop(grace=None)
    again.journal.close()


def _removed(state: Path) -> None:
    shutil.rmtree(state)


def _replaced(state: Path) -> None:
    state.rename(state.with_name("elsewhere"))
    (state / "journal").mkdir(parents=True)
    (state / "journal" / "events.jsonl").touch()


def _file_removed(state: Path) -> None:
    (state / "journal" / "events.jsonl").unlink()


@pytest.mark.parametrize(
    ("lose", "told"),
    [
        (_removed, "was removed"),
        (_replaced, "was replaced by another file"),
        (_file_removed, "was removed"),
    ],
)
async def test_an_agent_whose_state_is_lost_ends_its_servers_says_so_and_goes(
    tmp_path: Path, lose: Callable[[Path], None], told: str
) -> None:
    state = tmp_path / "state"
    config = AgentConfig(host="here", state=state, gpus=0, simulated_gpus=8)
    parts, stopping = await build_agent(config), asyncio.Event()
    await parts.server.start()
    async with asyncio.timeout(LIMIT_S):
        running = asyncio.ensure_future(parts.agent.run(stopping))
        await started(parts.agent, running)
        launched = (await first(parts.agent, ev.ServerLaunched)).body
        assert isinstance(launched, ev.ServerLaunched)
        lose(state)
        with pytest.raises(
            JournalFailed, match=f"events.jsonl {told} while the agent ran: the agent stops"
        ) as raised:
            await running
    assert "state folder" in raised.value.hint
    assert raised.value.exit_code != 0
    assert not os.path.exists(f"/proc/{launched.pid}"), "nobody else knows of it"  # noqa: ASYNC240 - of this moment
    await parts.server.stop(grace=None)
    parts.journal.close()


async def test_a_stream_of_events_that_are_gone_is_refused_in_words(tmp_path: Path) -> None:
    parts = await build_agent(
        AgentConfig(host="here", state=tmp_path / "state", gpus=0, simulated_gpus=8)
    )
    parts.journal.append(
        ev.TrialOver(Outcome.OK), "t", 1, cause=0, phase=Phase.OVER, time_unix_ns=1
    )
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(JournalFailed, match=r"events.jsonl cannot be read: No such file"):
        await first(parts.agent, ev.TrialOver)
    parts.journal.close()


async def test_the_process_of_an_agent_whose_state_is_lost_ends_with_two_lines_and_a_code_that_restarts_it(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
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
        "1",
    )
    async with asyncio.timeout(LIMIT_S):
        process = await asyncio.create_subprocess_exec(
            *argv, stderr=asyncio.subprocess.PIPE, start_new_session=True
        )
        assert process.stderr is not None
        while b"listening on" not in await process.stderr.readline():
            pass
        client = AgentClient(f"unix:{state}/agent.sock")
        info = await client.describe()
        watching = asyncio.ensure_future(anext(client.events(info.agent_id, 0)))
        await asyncio.sleep(0.5)
        shutil.rmtree(state)
        with pytest.raises(Conflict, match="was removed while the agent ran"):
            await watching
        await client.close()
        said = (await process.stderr.read()).decode()
        assert await process.wait() == JournalFailed("").exit_code != 0
    assert "Traceback" not in said
    assert f"fleet-agent: {state}/journal/events.jsonl was removed while the agent ran" in said
    assert "keep other programs away from the agent's state folder" in said.splitlines()[-1]
