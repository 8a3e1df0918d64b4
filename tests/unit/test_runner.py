"""The end of a trial that cannot be journalled: it is written as soon as it can be, and left to the
next agent when this one stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_agent.core.trial import AgentTrial
from fleet_agent.core.trial_machine import new_trial
from fleet_agent.engines.catalogue import ENGINES
from fleet_agent.load.load_process import LoadProcess
from fleet_agent.server.ports import Ports
from fleet_agent.server.supervisor import Supervisor
from fleet_agent.server.trial_server import TrialTools
from fleet_agent.storage.journal import JournalFailed
from fleet_agent.trials.effect_handlers import EffectHandlers
from fleet_agent.trials.runner import TrialRunner
from fleet_protos import events as ev
from fleet_protos.trial_types import EngineKind, EngineSpec, ErrorKind, Outcome, TrialSpec

SPEC = TrialSpec(
    "t", engine=EngineSpec(kind=EngineKind.EXTERNAL, url="http://127.0.0.1:1", ready_timeout_s=9.0)
)
LIMIT_S = 20.0


class Disk:
    """What a journal does on a disk that is full for the first `refusals` records."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.written: list[ev.Body] = []
        self.asked = asyncio.Event()

    async def record(self, body: ev.Body, trial: AgentTrial, cause: int) -> ev.Event:
        self.asked.set()
        if self.refusals:
            self.refusals -= 1
            raise JournalFailed("events.jsonl: No space left on device", "free space")
        self.written.append(body)
        return ev.Event(
            len(self.written), 0, trial.spec.trial_id, trial.spec.attempt, cause, trial.phase, body
        )


@pytest.fixture
def errands(tmp_path: Path) -> Iterator[EffectHandlers]:
    folder = tmp_path / "t" / "1"
    folder.mkdir(parents=True)
    yield EffectHandlers(
        SPEC, TrialTools(Supervisor(), LoadProcess(), Ports(), ENGINES), (), folder
    )


async def test_an_end_that_could_not_be_written_is_written_when_there_is_room(
    errands: EffectHandlers,
) -> None:
    disk = Disk(refusals=3)
    async with asyncio.timeout(LIMIT_S):
        await TrialRunner(new_trial(SPEC), errands, disk.record).run(ev.TrialAccepted(SPEC))
    (over,) = disk.written
    assert isinstance(over, ev.TrialOver)
    assert (over.outcome, over.kind, over.failure_class) == (
        Outcome.FAILED,
        ErrorKind.CONFLICT,
        "journal_failed",
    )
    assert "No space left on device: free space" in over.message


async def test_a_cancel_does_not_end_the_wait_and_the_stop_of_the_agent_does(
    errands: EffectHandlers,
) -> None:
    disk = Disk(refusals=1 << 30)
    runner = TrialRunner(new_trial(SPEC), errands, disk.record)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(runner.run(ev.TrialAccepted(SPEC)))
        await disk.asked.wait()
        runner.cancel("enough")
        disk.asked.clear()
        await disk.asked.wait()
        assert not running.done()
        await runner.interrupt(ev.AgentRestarted("the agent stops", stopped=True))
    assert disk.written == []
