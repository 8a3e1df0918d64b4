"""A simulated server over two hosts, each with a real agent: all of it runs or none, whoever dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet_agent.host.processes import read_stat
from fleet_controller.app.bootstrap import start_controller
from fleet_controller.app.controller import FleetController
from fleet_controller.core.controller_api import JobDetail, is_job_over
from fleet_controller.core.gang import member_specs, spec_for_agent
from fleet_controller.hosts.agent_client import AgentClient
from fleet_controller.yaml.findings import JobRejected
from fleet_protos import events as ev
from fleet_protos.errors import ConfigError, ErrorKind
from fleet_protos.trial_types import (
    EngineKind,
    EngineSpec,
    Gang,
    Outcome,
    Phase,
    TrialSpec,
    Workload,
)
from tests.fakes.agent import FakeAgent
from tests.fakes.two_hosts import two_hosts

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: gang
model: {{path: sim/kimi}}
engine: {{kind: simulated, nodes: 2, gpus: 8, args: {{tp_size: 16}}, simulation: {{time_scale: 50}}, stop_timeout: 1s{engine}}}
workloads: {{single: {{concurrency: 1, prompts: builtin:chat, output_tokens: {tokens}}}}}
measure: {{launches: 1, runs: {{min: 2, max: 2}}}}
"""
LIMIT_S = 90.0  # Ray starts in it
LONG = 200_000  # tokens: a load of these does not end by itself here
SOON_S = 30.0


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with two_hosts(tmp_path_factory.mktemp("gang"), "only_a=known-here-alone\n") as addresses:
        yield addresses


@pytest.fixture
async def fleet(agents: list[str], tmp_path: Path) -> AsyncIterator[FleetController]:
    async with start_controller(tmp_path / "controller", agents) as here:
        yield here.fleet


async def submit(
    fleet: FleetController, *, tokens: int = 40, engine: str = ""
) -> tuple[str, str, str]:
    """(job, lead, member)."""
    job_id = await fleet.submit(JOB.format(tokens=tokens, engine=engine), "job.yaml")
    (trial,) = (await fleet.job(job_id)).trials
    return job_id, trial.trial_id, f"{trial.trial_id}_n1"


async def until(
    fleet: FleetController,
    job_id: str,
    wanted: Callable[[JobDetail], bool],
    limit_s: float = LIMIT_S,
) -> JobDetail:
    async with asyncio.timeout(limit_s):
        async for _ in fleet.watch(job_id):
            detail = await fleet.job(job_id)
            if wanted(detail):
                return detail
    return await fleet.job(job_id)


def is_at(phase: Phase, attempt: int = 1) -> Callable[[JobDetail], bool]:
    return lambda detail: (detail.trials[0].attempt, detail.trials[0].phase) == (attempt, phase)


async def bodies(fleet: FleetController, trial_id: str, attempt: int, kind: type[Any]) -> list[Any]:
    detail = await fleet.trial(trial_id, attempt, with_log=False)
    return [event.body for event in detail.events if isinstance(event.body, kind)]


async def assert_nothing_left(fleet: FleetController, trial_id: str, attempt: int) -> None:
    for launched in await bodies(fleet, trial_id, attempt, ev.ServerLaunched):
        stat = read_stat(launched.pid)
        assert stat is None or not stat.is_alive
    assert all(
        not stopped.left_over
        for stopped in await bodies(fleet, trial_id, attempt, ev.ServerStopped)
    )


async def kill(fleet: FleetController, trial_id: str, attempt: int = 1) -> None:
    (launched,) = await bodies(fleet, trial_id, attempt, ev.ServerLaunched)
    os.kill(launched.pid, signal.SIGKILL)


async def test_a_server_over_two_hosts_is_measured_as_one_trial(fleet: FleetController) -> None:
    job_id, lead, member = await submit(fleet)
    detail = await until(fleet, job_id, lambda detail: is_job_over(detail.job))
    assert (detail.job.state, detail.job.trials, [trial.message for trial in detail.trials]) == (
        "done",
        1,
        [""],
    )
    assert {run.trial_id for run in (await fleet.results(job_id)).runs} == {lead}
    words = [(await bodies(fleet, node, 1, ev.ServerLaunched))[0].argv for node in (lead, member)]
    place = [argv[argv.index("--nnodes") : argv.index("--nnodes") + 6] for argv in words]
    assert [argv[:4] for argv in place] == [("--nnodes", "2", "--node-rank", rank) for rank in "01"]
    assert place[0][5] == place[1][5]
    for node in (lead, member):
        await assert_nothing_left(fleet, node, 1)


async def test_a_member_proves_the_variables_on_its_own_host(fleet: FleetController) -> None:
    job_id, _, member = await submit(fleet, engine=", env: {NCCL_PROTO: LL}")
    await until(fleet, job_id, lambda detail: is_job_over(detail.job))
    (proved,) = await bodies(fleet, member, 1, ev.ConfigurationProved)
    assert (proved.env["NCCL_PROTO"], proved.gates) == ("LL", ())


async def test_a_member_that_is_killed_ends_its_lead_within_seconds_and_all_is_tried_again(
    fleet: FleetController,
) -> None:
    job_id, lead, member = await submit(fleet, tokens=LONG)
    await until(fleet, job_id, is_at(Phase.WARMING))
    await kill(fleet, member)
    await until(fleet, job_id, is_at(Phase.WARMING, attempt=2), SOON_S)
    first = (await fleet.trial(lead, 1, with_log=False)).status
    assert (first.outcome, first.kind, first.failure_class) == (
        Outcome.FAILED,
        ErrorKind.SERVER_EXITED,
        "killed",
    )
    assert first.message.startswith("node 1 on host host-b: ")
    for node in (lead, member):
        await assert_nothing_left(fleet, node, 1)
    first_place, second_place = [
        (await bodies(fleet, lead, number, ev.ServerLaunched))[0].argv for number in (1, 2)
    ]
    assert first_place != second_place
    await fleet.cancel(job_id)
    await until(fleet, job_id, lambda detail: is_job_over(detail.job))


async def test_a_lead_that_is_killed_ends_its_members(fleet: FleetController) -> None:
    job_id, lead, member = await submit(fleet, tokens=LONG)
    await until(fleet, job_id, is_at(Phase.WARMING))
    await kill(fleet, lead)
    await until(fleet, job_id, is_at(Phase.WARMING, attempt=2), SOON_S)
    first = (await fleet.trial(lead, 1, with_log=False)).status
    assert (first.outcome, first.failure_class) == (Outcome.FAILED, "killed")
    await assert_nothing_left(fleet, member, 1)
    await fleet.cancel(job_id)
    await until(fleet, job_id, lambda detail: is_job_over(detail.job))


async def test_a_cancel_ends_all_nodes(fleet: FleetController) -> None:
    job_id, lead, member = await submit(fleet, tokens=LONG)
    await until(fleet, job_id, is_at(Phase.WARMING))
    assert await fleet.cancel(job_id) == 1
    detail = await until(fleet, job_id, lambda detail: is_job_over(detail.job), SOON_S)
    assert (detail.job.state, detail.trials[0].outcome) == ("cancelled", Outcome.CANCELLED)
    for node in (lead, member):
        await assert_nothing_left(fleet, node, 1)


async def test_a_member_that_cannot_launch_fails_the_trial_with_its_own_words(
    fleet: FleetController,
) -> None:
    job_id, lead, member = await submit(fleet, engine=", env: {HF_TOKEN: 'secret://only_a'}")
    detail = await until(fleet, job_id, lambda detail: is_job_over(detail.job), SOON_S)
    (trial,) = detail.trials
    assert (detail.job.state, trial.attempt, trial.kind) == ("failed", 1, ErrorKind.CONFIG)
    assert trial.message.startswith("node 1 on host host-b: ") and "only_a" in trial.message
    for node in (lead, member):
        await assert_nothing_left(fleet, node, 1)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[FakeAgent, FakeAgent]]:
    """Two scripted agents that end nothing by themselves."""
    agents = (
        FakeAgent(f"unix:{tmp_path}/a.sock"),
        FakeAgent(f"unix:{tmp_path}/b.sock", "there", "b-1"),
    )
    for agent in agents:
        agent.by_itself = False
        await agent.up()
    yield agents
    for agent in agents:
        await agent.down()


async def test_an_agent_that_forgot_its_part_ends_the_others_and_all_is_tried_again(
    tmp_path: Path, pair: tuple[FakeAgent, FakeAgent]
) -> None:
    """The second host comes back without its journal: nobody will ever tell the end of its part."""
    lead, member = pair
    async with start_controller(tmp_path / "controller", [lead.address, member.address]) as here:
        job_id = await here.fleet.submit(JOB.format(tokens=40, engine=""), "job.yaml")
        await until(here.fleet, job_id, lambda _: bool(lead.started and member.started), SOON_S)
        await member.down()
        member.agent_id, member.journal = "b-2", []
        lead.by_itself = True
        await member.up()
        detail = await until(here.fleet, job_id, lambda detail: is_job_over(detail.job), SOON_S)
        first = (await here.fleet.trial(lead.started[0].trial_id, 1, with_log=False)).status
    assert (first.outcome, first.failure_class) == (Outcome.FAILED, "agent_state_lost")
    assert set(lead.cancelled) == {(lead.started[0].trial_id, 1)}
    assert [[spec.attempt for spec in agent.started] for agent in pair] == [[1, 2], [1, 2]]
    assert (detail.job.state, set(member.cancelled)) == ("done", {(member.started[1].trial_id, 2)})


async def test_a_controller_that_comes_back_ends_what_is_left_of_a_gang(
    tmp_path: Path, pair: tuple[FakeAgent, FakeAgent]
) -> None:
    lead, member = pair
    async with start_controller(tmp_path / "controller", [lead.address, member.address]) as here:
        job_id = await here.fleet.submit(JOB.format(tokens=40, engine=""), "job.yaml")
        await until(here.fleet, job_id, lambda _: bool(lead.started and member.started), SOON_S)
    lead.end(lead.started[0])
    async with start_controller(tmp_path / "controller", [lead.address, member.address]) as here:
        detail = await until(here.fleet, job_id, lambda detail: is_job_over(detail.job), SOON_S)
    assert (detail.job.state, detail.trials[0].attempt, set(member.cancelled)) == (
        "done",
        1,
        {(member.started[0].trial_id, 1)},
    )


async def test_hosts_that_cannot_meet_are_refused_before_anything_starts(
    tmp_path: Path, pair: tuple[FakeAgent, FakeAgent]
) -> None:
    lead, far = pair
    far.labels = {"address": "10.0.0.2"}
    async with start_controller(tmp_path / "controller", [lead.address, far.address]) as here:
        with pytest.raises(
            ConfigError, match="no address is known at which host there reaches host here"
        ):
            await here.fleet.submit(JOB.format(tokens=40, engine=""), "job.yaml")
    assert lead.started == far.started == []


async def test_one_host_alone_is_refused(agents: list[str], tmp_path: Path) -> None:
    async with start_controller(tmp_path / "controller", agents[:1]) as here:
        with pytest.raises(
            JobRejected, match="one server takes 2 hosts, but only 1 host matches the job: host-a"
        ):
            await submit(here.fleet)


async def test_a_member_that_nobody_ends_gives_its_gpus_back_at_its_limit(
    agents: list[str],
) -> None:
    """No controller at all: both nodes were begun, and nobody listens any more."""
    engine = EngineSpec(
        EngineKind.SIMULATED,
        "sim/kimi",
        {"tp_size": 16},
        gpus=8,
        stop_timeout_s=1.0,
        gang=Gang(2, hold_limit_s=1.0),
    )
    workload = Workload(
        "single", concurrency=1, prompts="builtin:chat", output_tokens=LONG, api="chat"
    )
    lead = TrialSpec("alone", job_id="j", host="host-a", engine=engine, workloads=(workload,))
    nodes = [
        spec_for_agent(spec, 1, "127.0.0.1") for spec in (lead, *member_specs(lead, ["host-b"]))
    ]
    ends = []
    for spec, address in zip(nodes, agents, strict=True):
        await _started(spec, address)
    for spec, address in zip(nodes, agents, strict=True):
        ends.append(await _end_of(spec, address))
    assert ends[1].failure_class == "gang_hold_limit"
    assert (ends[0].outcome, ends[0].failure_class) == (Outcome.FAILED, "nccl_peer_lost")


async def _started(spec: TrialSpec, address: str) -> None:
    client = AgentClient(address)
    await client.start(spec)
    await client.close()


async def _end_of(spec: TrialSpec, address: str) -> ev.TrialOver:
    client = AgentClient(address)
    try:
        async with asyncio.timeout(LIMIT_S):
            async for event in client.events("", 0):
                if event.trial_id == spec.trial_id and isinstance(event.body, ev.TrialOver):
                    return event.body
    finally:
        await client.close()
    raise AssertionError("the stream ended")
