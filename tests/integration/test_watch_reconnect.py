"""A watched job survives its controller, and an answer about hosts is not taken for silence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from fleet_controller.app.bootstrap import start_controller
from fleet_controller.cli.controller_client import ControllerClient, ControllerLost
from fleet_controller.cli.follow_job import follow_job
from fleet_controller.report.job_progress import JobProgress
from fleet_protos.errors import HostUnreachable
from tests.fakes.agent import FakeAgent
from tests.integration.test_hosts import LIMIT_S, agents, job, started

__all__ = ["agents"]


class Lines:
    """A display that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.added = asyncio.Event()

    def update(self, progress: JobProgress, lines: Sequence[str]) -> None:
        for line in lines:
            self.print_line(line)

    def print_line(self, text: str) -> None:
        self.lines.append(text)
        self.added.set()

    def close(self) -> None:
        return

    async def wait_for(self, text: str) -> None:
        while not any(text in line for line in self.lines):
            self.added.clear()
            await self.added.wait()


async def test_a_watch_continues_with_the_controller_that_is_started_next(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agent, display = agents[0], Lines()
    agent.by_itself = False
    async with asyncio.timeout(2 * LIMIT_S), asyncio.TaskGroup() as tasks:
        async with start_controller(tmp_path / "controller", [agent.address]) as first:
            job_id = await first.fleet.submit(job(), "job.yaml")
            await started(first.fleet, job_id, agent, 1)
            remote = ControllerClient(first.address)
            watching = tasks.create_task(follow_job(remote, job_id, display))
            await display.wait_for(job_id)
        await display.wait_for("does not answer")
        agent.by_itself = True
        agent.end(agent.started[0])
        async with start_controller(tmp_path / "controller", [agent.address]), remote:
            assert (await watching).state == "done"
    assert "the controller answers again" in display.lines


async def test_a_controller_that_was_never_there_is_not_waited_for(tmp_path: Path) -> None:
    async with ControllerClient(f"unix:{tmp_path}/nobody.sock") as remote:
        with pytest.raises(ControllerLost, match="does not answer"):
            await follow_job(remote, "job", Lines())


async def test_a_submit_without_a_connected_host_says_so_and_is_asked_once(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/no-agent.sock"
    async with (
        start_controller(tmp_path / "controller", [address], first_contact_s=0.2) as here,
        ControllerClient(here.address) as remote,
    ):
        with pytest.raises(HostUnreachable) as raised:
            await remote.submit(job(), "job.yaml")
        assert raised.value.message.startswith("no agent is connected (")
        assert not isinstance(raised.value, ControllerLost)
