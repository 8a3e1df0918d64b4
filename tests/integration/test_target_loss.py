"""Agents of other versions, with other clocks and without room, and clients whose line breaks:
told, worked with, or refused in words.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from fleet_controller.app.bootstrap import start_controller
from fleet_controller.app.controller import FleetController
from fleet_controller.app.service import ControllerService
from fleet_controller.cli.commands.up import connected_hosts_lines
from fleet_controller.cli.controller_client import ControllerClient
from fleet_controller.core.compatibility import agent_incompatibility, clock_warning
from fleet_controller.core.controller_api import HostStatus, JobDetail
from fleet_controller.core.inventory import FleetHost
from fleet_controller.hosts.targets import AgentTarget, FleetTargets, HostAccess, without_tls
from fleet_protos import events as ev
from fleet_protos.errors import ConfigError, ErrorKind
from fleet_protos.protocol_version import PROTOCOL
from fleet_protos.trial_types import Outcome, Phase
from fleet_protos.v1 import controller_pb2_grpc
from fleet_transport.sockets import bind_server
from tests.fakes.agent import FakeAgent, run_of
from tests.fakes.looks import eventually

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: job
model: {path: sim/kimi}
engine: {kind: simulated, gpus: 8, args: {tp_size: 8}, simulation: {time_scale: 20}}
factors: {nccl: {default: {}, tuned: {env: {NCCL_PROTO: LL}}}}
baseline: {nccl: default}
workloads: {single: {concurrency: 1, prompts: builtin:chat, output_tokens: 50}}
measure: {launches: 1}
"""
OF_TOMORROW = b"\xa2\x38\x03new"  # field 900, three bytes
LIMIT_S = 20.0


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[FakeAgent]:
    agent = FakeAgent(f"unix:{tmp_path}/a.sock")
    await agent.up()
    yield agent
    await agent.down()


@pytest.fixture
async def fleet(tmp_path: Path, agent: FakeAgent) -> AsyncIterator[FleetController]:
    async with start_controller(tmp_path / "controller", [agent.address]) as here:
        yield here.fleet


async def over(fleet: FleetController, job_id: str) -> JobDetail:
    async with asyncio.timeout(LIMIT_S):
        async for _ in fleet.watch(job_id):
            pass
    return await fleet.job(job_id)


async def listed(fleet: FleetController, state: str) -> HostStatus:
    return (await eventually(fleet.hosts, lambda hosts: hosts[0].state == state))[0]


@pytest.mark.parametrize("protocol", [PROTOCOL - 1, PROTOCOL, PROTOCOL + 1])
async def test_an_agent_one_minor_away_is_worked_with(
    tmp_path: Path, agent: FakeAgent, protocol: int
) -> None:
    agent.protocol, agent.by_itself = protocol, False
    agent.extra = OF_TOMORROW if protocol > PROTOCOL else b""
    async with start_controller(tmp_path / "controller", [agent.address]) as here:
        job_id = await here.fleet.submit(JOB, "job.yaml")
        for number in (1, 2):
            await eventually(
                lambda: here.fleet.job(job_id),
                lambda _, number=number: len(agent.started) == number,
            )
            spec = agent.started[-1]
            if protocol > PROTOCOL:
                agent.tell(spec, None, Phase.WARMING)
            agent.tell(spec, run_of(spec, 1))
            agent.end(spec)
        detail = await over(here.fleet, job_id)
        assert (detail.job.state, {trial.runs for trial in detail.trials}) == ("done", {1})
        await eventually(here.fleet.hosts, lambda _: agent.acknowledged == len(agent.journal))
    told = {lease.protocol for lease in agent.leases}
    assert told == {PROTOCOL}


@pytest.mark.parametrize("protocol", [PROTOCOL + 2, PROTOCOL + 9])
async def test_an_agent_further_away_is_listed_with_what_to_do_and_gets_nothing(
    fleet: FleetController, agent: FakeAgent, protocol: int
) -> None:
    await listed(fleet, "connected")
    await agent.down()
    agent.protocol = protocol
    await agent.up()
    status = await listed(fleet, "incompatible")
    assert (
        f"the agent of here (version unknown) speaks protocol 1.{protocol}, this controller 1.{PROTOCOL}"
        in status.message
    )
    assert "update benchfleet on this machine to the version of the agents" in status.message
    assert agent.started == []
    await agent.down()
    agent.protocol = PROTOCOL
    await agent.up()
    await listed(fleet, "connected")


async def test_a_host_of_another_controller_is_never_told_to_be_connected(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.obeys_another = True

    async def reach(_: FleetHost) -> str:
        return agent.address

    follow = FleetTargets(
        (AgentTarget(agent.address, FleetHost("here")),), HostAccess(reach, without_tls)
    )
    async with start_controller(tmp_path / "controller", follow) as here:
        await here.fleet.wait_for_agents()
        (status,) = await here.fleet.hosts()
        assert (
            status.state,
            "belongs to controller a01e — end that one first" in status.message,
        ) == ("unreachable", True)
        lines = connected_hosts_lines(await here.fleet.hosts(), "fleet.yaml")
        assert lines[0] == "fleet.yaml: 0 of 1 hosts connected"
        assert "end that one first" in lines[1]
        agent.obeys_another = False
        await listed(here.fleet, "connected")


async def test_a_revoked_host_is_told_to_be_that_and_not_what_followed_from_it(
    tmp_path: Path, agent: FakeAgent
) -> None:
    revoked: list[str] = []

    async def reach(_: FleetHost) -> str:
        return agent.address

    def proofs(host: str) -> None:
        if revoked:
            raise ConfigError(
                f"the certificate of host {host} was revoked",
                f"`fleetctl deploy {host}` issues a new one",
            )

    follow = FleetTargets(
        (AgentTarget(agent.address, FleetHost("here")),), HostAccess(reach, proofs)
    )
    async with start_controller(tmp_path / "controller", follow) as here:
        await listed(here.fleet, "connected")
        revoked.append("here")
        await agent.down()
        told = "the certificate of host here was revoked: `fleetctl deploy here` issues a new one"
        assert (await listed(here.fleet, "unreachable")).message == told
        (found,) = [found async for found in here.fleet.check_hosts(["here"])]
        (wrong,) = found.findings
        assert (wrong.message, wrong.hint) == tuple(told.split(": "))


def test_an_agent_that_is_too_old_is_deployed_anew() -> None:
    assert agent_incompatibility("gpu01", "0.1.0", 3, ours=5)[1] == "fleetctl deploy gpu01"
    assert agent_incompatibility("gpu01", "0.1.0", 4, ours=5) == ("", "")


@pytest.mark.parametrize("ahead_s", [-86_400.0, -3.0, 3.0, 86_400.0])
async def test_a_clock_that_is_off_is_told_and_changes_nothing(
    tmp_path: Path, agent: FakeAgent, ahead_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    agent.ahead_s, agent.by_itself = ahead_s, False
    with caplog.at_level(logging.WARNING):
        async with start_controller(tmp_path / "controller", [agent.address]) as here:
            job_id = await here.fleet.submit(JOB, "job.yaml")
            await eventually(lambda: here.fleet.job(job_id), lambda _: bool(agent.started))
            agent.end(
                agent.started[0],
                ev.TrialOver(Outcome.FAILED, ErrorKind.SERVER_EXITED, "killed", "gone"),
            )  # tried again after 1 s
            agent.by_itself = True
            began_s = time.monotonic()
            detail = await over(here.fleet, job_id)
            took_s = time.monotonic() - began_s
            (status,) = await here.fleet.hosts()
    assert (detail.job.state, sorted(trial.attempt for trial in detail.trials)) == ("done", [1, 2])
    assert 0.9 < took_s < 10
    assert status.clock_ahead_s == pytest.approx(ahead_s, abs=0.5)
    assert clock_warning(ahead_s) in status.message
    assert clock_warning(ahead_s) in caplog.text


@pytest.mark.parametrize(
    ("ahead_s", "told"),
    [(0.0, ""), (1.9, ""), (-2.0, ""), (2.5, "is 2.5 s ahead"), (-7200, "2.0 h behind")],
)
def test_only_a_clock_that_is_far_off_is_remarked_on(ahead_s: float, told: str) -> None:
    assert told in clock_warning(ahead_s)
    assert bool(clock_warning(ahead_s)) == bool(told)


async def test_a_host_without_room_waits_and_no_attempt_is_spent(
    fleet: FleetController, agent: FakeAgent
) -> None:
    agent.takes_no_trials = "the disk of /state has 3 MiB free, but a trial needs 64 MiB"
    told = f"takes no new trials: {agent.takes_no_trials}"
    await eventually(
        fleet.hosts, lambda hosts: told in hosts[0].message and hosts[0].state == "connected"
    )
    job_id = await fleet.submit(JOB, "job.yaml")
    job = (await eventually(fleet.jobs, lambda jobs: "3 MiB free" in jobs[0].trouble))[0]
    assert (job.state, agent.started) == ("queued", [])
    agent.takes_no_trials = ""
    detail = await over(fleet, job_id)
    assert (detail.job.state, {trial.attempt for trial in detail.trials}) == ("done", {1})


class Breaking(ControllerService):
    """A controller's door whose answers to the first submits are lost on the way."""

    def __init__(self, fleet: FleetController, lost: int) -> None:
        super().__init__(fleet)
        self.lost = lost

    async def SubmitJob(self, request: Any, context: Any) -> Any:
        answer = await super().SubmitJob(request, context)
        self.lost -= 1
        if self.lost >= 0:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the line broke")
        return answer


async def test_a_submit_whose_answer_is_lost_makes_one_job(
    fleet: FleetController, tmp_path: Path
) -> None:
    server = aio.server()
    controller_pb2_grpc.add_ControllerServiceServicer_to_server(Breaking(fleet, 2), server)
    address = bind_server(server, f"unix:{tmp_path}/breaking.sock")
    await server.start()
    try:
        async with ControllerClient(address) as remote:
            job_id = await remote.submit(JOB, "job.yaml")
            assert [job.job_id for job in await fleet.jobs()] == [job_id]
            again = await remote.submit(JOB, "job.yaml")
            assert sorted(job.job_id for job in await fleet.jobs()) == sorted((job_id, again)), (
                "another submit is another job"
            )
        await over(fleet, job_id)
        await over(fleet, again)
    finally:
        await server.stop(grace=None)


async def test_a_submit_with_the_same_key_is_the_same_job_after_a_restart_too(
    tmp_path: Path, agent: FakeAgent
) -> None:
    made = []
    for _ in range(2):
        async with start_controller(tmp_path / "controller", [agent.address]) as here:
            made += [await here.fleet.submit(JOB, "job.yaml", False, "key") for _ in range(2)]
            await over(here.fleet, made[0])
            assert len(await here.fleet.jobs()) == 1
    assert len(set(made)) == 1
