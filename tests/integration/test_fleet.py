"""The controller against agents that break off, repeat themselves, forget and refuse: nothing is
lost and nothing counts twice.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from fleet_controller.app.bootstrap import start_controller
from fleet_controller.app.controller import FleetController
from fleet_controller.core.controller_api import JobDetail, is_job_over
from fleet_controller.store.store import Store
from fleet_protos import events as ev
from fleet_protos.errors import ConfigError, Conflict, ErrorKind, HostUnreachable
from fleet_protos.trial_types import Artifact, Outcome, TrialSpec
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
LIMIT_S = 20.0


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[FakeAgent]:
    agent = FakeAgent(f"unix:{tmp_path}/a.sock")
    await agent.up()
    yield agent
    await agent.down()


@asynccontextmanager
async def controller(folder: Path, *agents: FakeAgent) -> AsyncIterator[FleetController]:
    async with start_controller(folder / "controller", [agent.address for agent in agents]) as here:
        yield here.fleet


async def until(
    fleet: FleetController, job_id: str, wanted: Callable[[JobDetail], bool]
) -> JobDetail:
    """The job as soon as it is as wanted, told by the controller's own stream of changes."""
    async with asyncio.timeout(LIMIT_S):
        async for _ in fleet.watch(job_id):
            detail = await fleet.job(job_id)
            if wanted(detail):
                return detail
    return await fleet.job(job_id)


async def done(fleet: FleetController, job_id: str) -> JobDetail:
    return await until(fleet, job_id, lambda detail: is_job_over(detail.job))


async def started(
    fleet: FleetController, job_id: str, agent: FakeAgent, count: int
) -> list[TrialSpec]:
    await until(fleet, job_id, lambda _: len(agent.started) >= count)
    return agent.started


async def test_a_job_runs_to_its_end_in_plan_order(tmp_path: Path, agent: FakeAgent) -> None:
    async with controller(tmp_path, agent) as fleet:
        job_id = await fleet.submit(JOB, "job.yaml")
        detail = await done(fleet, job_id)
        assert (detail.job.state, detail.job.trials_over) == ("done", 4)
        assert [spec.trial_id for spec in agent.started] == [
            trial.trial_id for trial in detail.trials
        ]
        assert len((await fleet.results(job_id)).runs) == 12


async def test_events_that_are_told_again_count_once(tmp_path: Path, agent: FakeAgent) -> None:
    agent.replays = True
    async with controller(tmp_path, agent) as fleet:
        job_id = await fleet.submit(JOB, "job.yaml")
        await started(fleet, job_id, agent, 2)
        await agent.down()
        await agent.up()
        await done(fleet, job_id)
        assert len((await fleet.results(job_id)).runs) == 12


async def test_only_what_is_stored_is_acknowledged(tmp_path: Path, agent: FakeAgent) -> None:
    async with controller(tmp_path, agent) as fleet:
        job_id = await fleet.submit(JOB, "job.yaml")
        await done(fleet, job_id)
    store = Store.open(str(tmp_path / "controller" / "store.sqlite3"), read_only=True)
    assert 0 < agent.acknowledged <= store.last_sequence(agent.agent_id) == len(agent.journal)
    store.close()


async def test_a_controller_that_comes_back_goes_on_from_its_store(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.by_itself = False
    async with controller(tmp_path, agent) as fleet:
        job_id = await fleet.submit(JOB, "job.yaml")
        (spec,) = await started(fleet, job_id, agent, 1)
    agent.tell(spec, run_of(spec, 1))  # while nobody listens
    agent.end(spec)
    agent.by_itself = True
    async with controller(tmp_path, agent) as fleet:
        detail = await done(fleet, job_id)
        assert detail.job.state == "done"
        assert {trial.attempt for trial in detail.trials} == {1}
        assert len((await fleet.results(job_id)).runs) == 1 + 3 * 3


async def test_an_agent_that_lost_its_journal_costs_an_attempt(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.by_itself = False
    async with controller(tmp_path, agent) as fleet:
        job_id = await fleet.submit(JOB, "job.yaml")
        (spec,) = await started(fleet, job_id, agent, 1)
        agent.tell(spec, run_of(spec, 1))
        await until(fleet, job_id, lambda detail: any(trial.runs for trial in detail.trials))
        await agent.down()
        agent.agent_id, agent.journal, agent.started, agent.by_itself = "agent-2", [], [], True
        await agent.up()
        detail = await done(fleet, job_id)
        assert detail.job.state == "done"
        assert [trial.attempt for trial in detail.trials] == [2, 1, 1, 1]
        first = await fleet.trial(spec.trial_id, 1, False)
        assert (first.status.kind, first.status.failure_class) == (
            ErrorKind.AGENT_RESTARTED,
            "agent_state_lost",
        )
        assert len((await fleet.results(job_id)).runs) == 1 + 12


async def test_a_busy_agent_is_asked_again(tmp_path: Path, agent: FakeAgent) -> None:
    agent.refusals = [grpc.StatusCode.RESOURCE_EXHAUSTED]
    async with controller(tmp_path, agent) as fleet:
        detail = await done(fleet, await fleet.submit(JOB, "job.yaml"))
        assert detail.job.state == "done"
        assert {trial.attempt for trial in detail.trials} == {1}


async def test_a_trial_that_the_agent_will_never_take_fails_with_its_reason(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.refusals = [grpc.StatusCode.INVALID_ARGUMENT]
    async with controller(tmp_path, agent) as fleet:
        detail = await done(fleet, await fleet.submit(JOB, "job.yaml"))
        assert detail.job.state == "failed"
        assert (detail.trials[0].failure_class, detail.trials[0].kind) == (
            "refused_by_agent",
            ErrorKind.CONFIG,
        )
        assert "not now" in detail.trials[0].message


async def test_a_variant_that_failed_for_good_is_not_launched_in_later_blocks(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.refusals = [grpc.StatusCode.INVALID_ARGUMENT]
    async with controller(tmp_path, agent) as fleet:
        detail = await done(fleet, await fleet.submit(JOB, "job.yaml"))
        first, *later = detail.trials
        (closed,) = (trial for trial in later if trial.variant == first.variant)
        assert {trial.outcome for trial in later if trial is not closed} == {Outcome.OK}
        assert (closed.outcome, closed.kind, closed.failure_class, closed.attempt) == (
            first.outcome,
            first.kind,
            first.failure_class,
            1,
        )
        assert closed.message.startswith(
            f"not launched again, because trial {first.trial_id} of block 1 failed: "
        )
        assert closed.trial_id not in [spec.trial_id for spec in agent.started]


@pytest.mark.parametrize(
    ("kind", "attempts"), [(ErrorKind.LOAD_FAILED, 2), (ErrorKind.SERVER_OOM, 1)]
)
async def test_a_failure_is_retried_as_its_kind_says(
    tmp_path: Path, agent: FakeAgent, kind: ErrorKind, attempts: int
) -> None:
    agent.by_itself = False
    async with controller(tmp_path, agent) as fleet:
        job_id = await fleet.submit(JOB, "job.yaml")
        for number in range(attempts):
            spec = (await started(fleet, job_id, agent, number + 1))[number]
            agent.end(spec, ev.TrialOver(Outcome.FAILED, kind, "why", "because"))
        agent.by_itself = True
        (next_one,) = (await started(fleet, job_id, agent, attempts + 1))[attempts:][:1]
        assert next_one.trial_id != agent.started[0].trial_id
        agent.end(next_one)
        detail = await done(fleet, job_id)
        assert (detail.job.state, detail.trials[0].attempt) == ("failed", attempts)


async def test_cancel_ends_what_runs_and_starts_nothing_more(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.by_itself = False
    async with controller(tmp_path, agent) as fleet:
        job_id = await fleet.submit(JOB, "job.yaml")
        (spec,) = await started(fleet, job_id, agent, 1)
        assert await fleet.cancel(job_id) == 4
        detail = await done(fleet, job_id)
        assert detail.job.state == "cancelled"
        assert agent.cancelled == [(spec.trial_id, 1)]
        assert len(agent.started) == 1
        assert await fleet.cancel(job_id) == 0


async def test_a_cancel_while_the_line_is_cut_is_told_afterwards(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.by_itself = False
    async with controller(tmp_path, agent) as fleet:
        job_id = await fleet.submit(JOB, "job.yaml")
        await started(fleet, job_id, agent, 1)
        await agent.down()
        await fleet.cancel(job_id)
        await agent.up()
        assert (await done(fleet, job_id)).job.state == "cancelled"
        assert len(agent.cancelled) == 1


@pytest.mark.parametrize("trouble", ["none", "break", "damage"])
async def test_files_arrive_whole_whatever_happens_on_the_way(
    tmp_path: Path, agent: FakeAgent, trouble: str
) -> None:
    content = bytes(range(256)) * 40
    agent.by_itself = False
    agent.break_after = 3 if trouble == "break" else -1
    agent.damage = trouble == "damage"
    async with controller(tmp_path, agent) as fleet:
        job_id = await fleet.submit(JOB, "job.yaml")
        (spec,) = await started(fleet, job_id, agent, 1)
        name = f"{spec.trial_id}/1/single-001.parquet"
        agent.files[name] = content
        agent.tell(
            spec,
            run_of(
                spec, 1, artifact=Artifact(name, hashlib.sha256(content).hexdigest(), len(content))
            ),
        )
        await until(fleet, job_id, lambda detail: any(trial.runs for trial in detail.trials))
    target = tmp_path / "controller" / "artifacts" / name
    assert target.read_bytes() == content
    assert not list(target.parent.glob("*.partial"))
    assert agent.offsets == {"none": [0], "break": [0, 3000], "damage": [0, 0]}[trouble]


async def test_without_an_agent_a_job_is_refused_with_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_controller(
        tmp_path / "controller", [f"unix:{tmp_path}/nobody.sock"], first_contact_s=0.3
    ) as here:
        with pytest.raises(HostUnreachable, match=r"nobody\.sock"):
            await here.fleet.submit(JOB, "job.yaml")


async def test_a_job_that_needs_more_gpus_than_the_host_has_is_refused(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.simulated_gpus = 4
    async with controller(tmp_path, agent) as fleet:
        with pytest.raises(ConfigError, match="needs 8 GPUs, but host here has 4"):
            await fleet.submit(JOB, "job.yaml")
        assert await fleet.jobs() == ()


async def test_a_simulated_job_on_hosts_without_simulated_gpus_is_refused_with_the_remedy(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.simulated_gpus = 0
    async with controller(tmp_path, agent) as fleet:
        with pytest.raises(ConfigError, match="host here runs no simulated servers") as refused:
            await fleet.submit(JOB, "job.yaml")
        assert await fleet.jobs() == ()
    assert "simulated_gpus" in refused.value.hint
    assert "benchfleet[simulator]" in refused.value.hint


async def test_two_agents_of_one_name_are_not_taken_for_one_host(
    tmp_path: Path, agent: FakeAgent
) -> None:
    twin = FakeAgent(f"unix:{tmp_path}/b.sock", agent_id="agent-b")
    await twin.up()
    async with controller(tmp_path, agent, twin) as fleet:
        await done(fleet, await fleet.submit(JOB, "job.yaml"))
        states = sorted((host.state, host.message) for host in await fleet.hosts())
        assert [state for state, _ in states] == ["connected", "unreachable"]
        assert "have the same host name, here" in states[1][1]
    assert 0 in (len(agent.started), len(twin.started))
    await twin.down()


async def test_one_controller_works_in_a_folder(tmp_path: Path, agent: FakeAgent) -> None:
    async with controller(tmp_path, agent):
        with pytest.raises(Conflict, match="runs a controller in"):
            async with controller(tmp_path, agent):
                pass
