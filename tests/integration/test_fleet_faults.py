"""The controller when a host hangs, a store is taken, a file is not what was told, or an order
comes at a bad moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest

from fleet_controller.app.bootstrap import start_controller
from fleet_controller.app.controller import FleetController
from fleet_controller.core.controller_api import JobDetail, is_job_over
from fleet_protos import events as ev
from fleet_protos.errors import ConfigError, Conflict, ErrorKind, HostUnreachable
from fleet_protos.trial_types import Artifact, Outcome, Phase, TrialSpec
from tests.fakes.agent import FakeAgent, run_of

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: job
model: {path: sim/kimi}
engine: {kind: simulated, gpus: 8, args: {tp_size: 8}, simulation: {time_scale: 20}}
factors: {nccl: {default: {}, tuned: {env: {NCCL_PROTO: LL}}}}
baseline: {nccl: default}
workloads: {single: {concurrency: 1, prompts: builtin:chat, output_tokens: 50}}
measure: {launches: 2}
"""
LIMIT_S = 10.0  # less than the deadline of one call to an agent


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[FakeAgent]:
    agent = FakeAgent(f"unix:{tmp_path}/a.sock")
    await agent.up()
    yield agent
    await agent.down()


@pytest.fixture
async def second(tmp_path: Path) -> AsyncIterator[FakeAgent]:
    agent = FakeAgent(f"unix:{tmp_path}/b.sock", host="there", agent_id="agent-b")
    await agent.up()
    yield agent
    await agent.down()


async def until(
    fleet: FleetController, job_id: str, wanted: Callable[[JobDetail], bool]
) -> JobDetail:
    """The job as soon as it is as wanted, told by the controller's own stream of changes."""
    async with asyncio.timeout(LIMIT_S):
        async for _ in fleet.watch(job_id):
            detail = await fleet.job(job_id)
            if wanted(detail):
                return detail
    raise AssertionError("the job ended otherwise")


def is_over(detail: JobDetail) -> bool:
    return is_job_over(detail.job)


async def first_started(fleet: FleetController, job_id: str, agent: FakeAgent) -> TrialSpec:
    await until(fleet, job_id, lambda _: bool(agent.started))
    return agent.started[0]


async def test_a_host_that_hangs_holds_up_no_other(
    tmp_path: Path, agent: FakeAgent, second: FakeAgent
) -> None:
    agent.hangs = True
    async with start_controller(tmp_path / "controller", [agent.address, second.address]) as here:
        job_id = await here.fleet.submit(JOB, "job.yaml")
        detail = await until(here.fleet, job_id, lambda detail: detail.job.trials_over == 4)
        assert {trial.host for trial in detail.trials if trial.outcome is Outcome.OK} == {"there"}


async def test_a_submit_waits_until_it_is_known_which_hosts_answer(
    tmp_path: Path, agent: FakeAgent, second: FakeAgent
) -> None:
    async with start_controller(tmp_path / "controller", [agent.address, second.address]) as here:
        detail = await here.fleet.job(await here.fleet.submit(JOB, "job.yaml"))
        assert {trial.host for trial in detail.trials} == {"here", "there"}


async def test_a_host_that_the_job_names_and_that_is_down_is_not_left_out_silently(
    tmp_path: Path, agent: FakeAgent
) -> None:
    named = JOB + "hosts: {names: [here, there]}\n"
    addresses = [agent.address, f"unix:{tmp_path}/nobody.sock"]
    async with start_controller(tmp_path / "controller", addresses, first_contact_s=1.0) as here:
        with pytest.raises(HostUnreachable, match=r"not connected: there .*nobody\.sock"):
            await here.fleet.submit(named, "job.yaml")


async def test_a_host_that_the_job_names_and_nobody_is_called_is_the_users_error(
    tmp_path: Path, agent: FakeAgent
) -> None:
    async with start_controller(tmp_path / "controller", [agent.address]) as here:
        with pytest.raises(ConfigError, match=r"not connected: theer$"):
            await here.fleet.submit(JOB + "hosts: {names: [here, theer]}\n", "job.yaml")


async def test_a_trial_that_no_agent_took_can_be_cancelled(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.refusals = [grpc.StatusCode.RESOURCE_EXHAUSTED] * 100
    async with start_controller(tmp_path / "controller", [agent.address]) as here:
        job_id = await here.fleet.submit(JOB, "job.yaml")
        await until(here.fleet, job_id, lambda detail: detail.job.state == "running")
        await here.fleet.cancel(job_id)
        detail = await until(here.fleet, job_id, is_over)
        assert (detail.job.state, detail.trials[0].outcome) == ("cancelled", Outcome.CANCELLED)
        assert agent.started == []


async def test_a_trial_that_ended_because_its_agent_was_stopped_is_tried_again(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.by_itself = False
    async with start_controller(tmp_path / "controller", [agent.address]) as here:
        job_id = await here.fleet.submit(JOB, "job.yaml")
        spec = await first_started(here.fleet, job_id, agent)
        agent.by_itself = True
        agent.end(spec, ev.TrialOver(Outcome.CANCELLED, message="the agent is stopping"))
        detail = await until(here.fleet, job_id, is_over)
        assert (detail.job.state, [trial.attempt for trial in detail.trials]) == (
            "done",
            [2, 1, 1, 1],
        )


async def test_a_host_that_came_back_with_fewer_gpus_fails_what_no_longer_fits(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.by_itself = False
    async with start_controller(tmp_path / "controller", [agent.address]) as here:
        job_id = await here.fleet.submit(JOB, "job.yaml")
        spec = await first_started(here.fleet, job_id, agent)
        await agent.down()
        agent.simulated_gpus = 4
        agent.end(spec)
        await agent.up()
        detail = await until(here.fleet, job_id, is_over)
        assert [trial.failure_class for trial in detail.trials] == ["", *["too_few_gpus"] * 3]
        assert detail.trials[1].message == "it needs 8 GPUs, but host here has only 4 now"


async def test_a_file_that_is_gone_costs_neither_the_run_nor_time_at_the_end(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.by_itself = False
    async with start_controller(tmp_path / "controller", [agent.address]) as here:
        job_id = await here.fleet.submit(JOB, "job.yaml")
        spec = await first_started(here.fleet, job_id, agent)
        agent.tell(
            spec,
            run_of(spec, 1, artifact=Artifact(f"{spec.trial_id}/1/gone.parquet", "00" * 32, 5)),
        )
        await until(here.fleet, job_id, lambda detail: any(trial.runs for trial in detail.trials))
        assert len((await here.fleet.results(job_id)).runs) == 1
        asked_s = time.monotonic()
    assert time.monotonic() - asked_s < LIMIT_S
    assert agent.offsets == [0]


async def test_a_burst_of_events_is_not_acknowledged_one_by_one(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.by_itself = False
    async with start_controller(tmp_path / "controller", [agent.address]) as here:
        job_id = await here.fleet.submit(JOB, "job.yaml")
        spec = await first_started(here.fleet, job_id, agent)
        for _ in range(200):
            agent.tell(spec, ev.ServerReady(1.0), Phase.MEASURING)
        async with asyncio.timeout(LIMIT_S):
            while agent.acknowledged < len(agent.journal):
                agent.asked_to_acknowledge.clear()
                await agent.asked_to_acknowledge.wait()
    assert agent.acknowledgements < 100


async def test_one_controller_works_with_a_store_wherever_its_state_is(
    tmp_path: Path, agent: FakeAgent
) -> None:
    async with start_controller(
        tmp_path / "one", [agent.address], store=str(tmp_path / "shared.sqlite3")
    ):
        with pytest.raises(Conflict, match="another fleetctl"):
            async with start_controller(
                tmp_path / "two", [agent.address], store=f"sqlite:///{tmp_path}/shared.sqlite3"
            ):
                pass


async def test_an_agents_own_bug_is_told_as_a_bug(tmp_path: Path, agent: FakeAgent) -> None:
    agent.refusals = [grpc.StatusCode.INTERNAL]
    async with start_controller(tmp_path / "controller", [agent.address]) as here:
        detail = await until(here.fleet, await here.fleet.submit(JOB, "job.yaml"), is_over)
        assert (detail.trials[0].kind, detail.trials[0].failure_class) == (
            ErrorKind.BUG,
            "refused_by_agent",
        )
