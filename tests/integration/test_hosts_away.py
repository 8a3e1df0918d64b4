"""Hosts that stay away: what waits for them ends, what they tell when they return is kept, and
nothing counts twice.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleet_controller.app.bootstrap import start_controller
from fleet_controller.app.controller import FleetController
from fleet_controller.core.controller_api import JobDetail, is_job_over
from fleet_controller.core.give_up import attempts_to_give_up
from fleet_controller.core.trial_state import HOST_GIVEN_UP, Attempt, Trial
from fleet_controller.hosts import host_timeouts
from fleet_controller.hosts.targets import FleetTargets, targets_of
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Artifact, Outcome, Phase, TrialSpec
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


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[FakeAgent]:
    agent = FakeAgent(f"unix:{tmp_path}/a.sock", by_itself=False)
    await agent.up()
    yield agent
    await agent.down()


@asynccontextmanager
async def controller(
    folder: Path, *agents: FakeAgent, patience_s: float = 1.0
) -> AsyncIterator[FleetController]:
    follow = FleetTargets(targets_of(agent.address for agent in agents), give_up_after_s=patience_s)
    async with start_controller(folder / "controller", follow) as here:
        yield here.fleet


async def until(
    fleet: FleetController, job_id: str, wanted: Callable[[JobDetail], bool]
) -> JobDetail:
    return await eventually(lambda: fleet.job(job_id), wanted)


async def started(
    fleet: FleetController, job_id: str, agent: FakeAgent, count: int = 1
) -> list[TrialSpec]:
    await until(fleet, job_id, lambda _: len(agent.started) >= count)
    return agent.started


async def gave_up(fleet: FleetController, agent: FakeAgent) -> tuple[str, TrialSpec]:
    """A job of which one trial runs on a host that goes away for good, as far as anybody knows."""
    job_id = await fleet.submit(JOB, "job.yaml")
    (spec,) = await started(fleet, job_id, agent)
    agent.tell(spec, run_of(spec, 1))
    await until(fleet, job_id, lambda detail: detail.trials[0].runs == 1)
    await agent.down()
    detail = await until(fleet, job_id, lambda detail: is_job_over(detail.job))
    assert [(trial.outcome, trial.kind, trial.failure_class) for trial in detail.trials] == [
        (Outcome.FAILED, ErrorKind.HOST_UNREACHABLE, HOST_GIVEN_UP)
    ] * 2
    assert detail.job.state == "failed"
    assert all(trial.message.startswith("host here has been away for ") for trial in detail.trials)
    return job_id, spec


async def test_a_job_ends_when_its_host_stays_away(tmp_path: Path, agent: FakeAgent) -> None:
    async with controller(tmp_path, agent) as fleet:
        await gave_up(fleet, agent)


async def test_a_host_that_is_back_in_time_costs_nothing(tmp_path: Path, agent: FakeAgent) -> None:
    async with controller(tmp_path, agent, patience_s=60.0) as fleet:
        job_id = await fleet.submit(JOB, "job.yaml")
        (spec,) = await started(fleet, job_id, agent)
        await agent.down()
        agent.tell(spec, run_of(spec, 1))
        agent.by_itself = True
        agent.end(spec)
        await eventually(fleet.hosts, lambda hosts: hosts[0].state == "unreachable")
        await agent.up()
        detail = await until(fleet, job_id, lambda detail: is_job_over(detail.job))
        assert (detail.job.state, {trial.attempt for trial in detail.trials}) == ("done", {1})


async def test_what_was_measured_meanwhile_counts_after_all(
    tmp_path: Path, agent: FakeAgent
) -> None:
    async with controller(tmp_path, agent) as fleet:
        job_id, spec = await gave_up(fleet, agent)
        agent.tell(spec, run_of(spec, 2))
        agent.tell(spec, run_of(spec, 3))
        agent.end(spec)
        await agent.up()
        detail = await until(fleet, job_id, lambda detail: detail.trials[0].outcome is Outcome.OK)
        assert (
            detail.trials[0].runs,
            detail.trials[0].attempt,
            detail.trials[0].failure_class,
        ) == (3, 1, "")
        assert detail.trials[1].failure_class == HOST_GIVEN_UP, "what never began stays unmeasured"
        assert [run.run.index for run in (await fleet.results(job_id)).runs] == [1, 2, 3]
        assert len(agent.started) == 1


async def test_what_still_runs_there_is_ended_and_keeps_its_reason(
    tmp_path: Path, agent: FakeAgent
) -> None:
    async with controller(tmp_path, agent) as fleet:
        job_id, spec = await gave_up(fleet, agent)
        await agent.up()
        await until(
            fleet,
            job_id,
            lambda _: bool(agent.cancelled) and agent.acknowledged == len(agent.journal),
        )
        assert agent.cancelled == [(spec.trial_id, 1)]
        detail = await fleet.job(job_id)
        assert (detail.trials[0].outcome, detail.trials[0].failure_class) == (
            Outcome.FAILED,
            HOST_GIVEN_UP,
        )
        assert detail.job.state == "failed"


async def cancelled_while_away(fleet: FleetController, agent: FakeAgent) -> tuple[str, TrialSpec]:
    """A job of which one trial runs on a host that went away, and that was cancelled then."""
    job_id = await fleet.submit(JOB, "job.yaml")
    (spec,) = await started(fleet, job_id, agent)
    agent.tell(spec, run_of(spec, 1))
    await until(fleet, job_id, lambda detail: detail.trials[0].runs == 1)
    await agent.down()
    await eventually(fleet.hosts, lambda hosts: hosts[0].state == "unreachable")
    await fleet.cancel(job_id)
    return job_id, spec


async def test_a_job_that_is_cancelled_while_its_host_is_away_ends(
    tmp_path: Path, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_timeouts, "CANCELLED_AFTER_S", 0.5)
    async with controller(tmp_path, agent, patience_s=3600.0) as fleet:
        job_id, spec = await cancelled_while_away(fleet, agent)
        detail = await until(fleet, job_id, lambda detail: is_job_over(detail.job))
        assert (detail.job.state, {trial.outcome for trial in detail.trials}) == (
            "cancelled",
            {Outcome.CANCELLED},
        )
        assert detail.trials[0].message.startswith("the job was cancelled while host here was away")
        await (
            agent.up()
        )  # what still runs there is ended, and its late end is kept apart from what was said of it
        await until(
            fleet,
            job_id,
            lambda _: bool(agent.cancelled) and agent.acknowledged == len(agent.journal),
        )
        assert agent.cancelled == [(spec.trial_id, 1)]
        after = await fleet.job(job_id)
        assert [(trial.outcome, trial.message) for trial in after.trials] == [
            (trial.outcome, trial.message) for trial in detail.trials
        ]
        assert len(agent.started) == 1


async def test_what_a_cancelled_trial_had_measured_before_counts_once(
    tmp_path: Path, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_timeouts, "CANCELLED_AFTER_S", 0.5)
    agent.replays = True
    async with controller(tmp_path, agent, patience_s=3600.0) as fleet:
        job_id, spec = await cancelled_while_away(fleet, agent)
        await until(fleet, job_id, lambda detail: is_job_over(detail.job))
        agent.tell(spec, run_of(spec, 2))
        agent.end(spec)
        await agent.up()
        await until(fleet, job_id, lambda detail: detail.trials[0].outcome is Outcome.OK)
        assert [run.run.index for run in (await fleet.results(job_id)).runs] == [1, 2]
        assert ((await fleet.job(job_id)).job.state, agent.cancelled) == ("cancelled", [])


async def test_a_controller_that_was_started_anew_waits_as_long_again(
    tmp_path: Path, agent: FakeAgent
) -> None:
    async with controller(tmp_path, agent, patience_s=60.0) as fleet:
        job_id = await fleet.submit(JOB, "job.yaml")
        await started(fleet, job_id, agent)
    await agent.down()
    async with controller(tmp_path, agent) as fleet:
        detail = await until(fleet, job_id, lambda detail: is_job_over(detail.job))
        assert {trial.failure_class for trial in detail.trials} == {HOST_GIVEN_UP}


async def test_files_of_an_attempt_are_let_go_when_they_are_all_here_and_not_before(
    tmp_path: Path, agent: FakeAgent
) -> None:
    content = bytes(range(256)) * 40
    async with controller(tmp_path, agent) as fleet:
        job_id = await fleet.submit(JOB, "job.yaml")
        (spec,) = await started(fleet, job_id, agent)
        name = f"{spec.trial_id}/1/single-001.parquet"
        agent.files[name] = content
        agent.break_after = 3
        agent.kept = [f"{spec.trial_id}/1", "of-another-store/1"]
        agent.tell(
            spec,
            run_of(
                spec, 1, artifact=Artifact(name, hashlib.sha256(content).hexdigest(), len(content))
            ),
        )
        agent.end(spec)
        await until(fleet, job_id, lambda _: bool(agent.released))
        assert (tmp_path / "controller" / "artifacts" / name).read_bytes() == content
        assert (agent.released, agent.kept) == ([f"{spec.trial_id}/1"], ["of-another-store/1"])


def trial(host: str, *attempts: Attempt, nodes: tuple[str, ...] = ()) -> Trial:
    lead = Trial(TrialSpec("t", host=host), attempts)
    members = tuple(
        Trial(TrialSpec(f"t_n{rank}", host=name), attempts) for rank, name in enumerate(nodes, 1)
    )
    return Trial(lead.spec, attempts, (lead, *members) if nodes else ())


RUNNING = Attempt(1, "a", Phase.MEASURING)
LOST = Attempt(1, "a", Phase.OVER, Outcome.FAILED, ErrorKind.AGENT_RESTARTED)
OK = Attempt(1, "a", Phase.OVER, Outcome.OK)


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        (trial("gone", RUNNING), [("t", 1)]),
        (trial("gone", LOST), [("t", 2)]),
        (trial("gone"), [("t", 1)]),
        (trial("gone", OK), []),
        (trial("there", RUNNING), []),
        (trial("there"), []),
        (trial("late", RUNNING), []),
        (trial(""), []),
        (trial("there", RUNNING, nodes=("gone",)), [("t_n1", 1)]),
        (trial("gone", RUNNING, nodes=("there", "gone")), [("t", 1), ("t_n2", 1)]),
        (trial("there", nodes=("gone",)), [("t", 1)]),
    ],
)
def test_only_what_needs_a_host_that_is_away_is_given_up(
    waits: Trial, expected: list[tuple[str, int]]
) -> None:
    ends = list(attempts_to_give_up([waits], {"gone": 61.0, "late": 59.0, "": 5.0}, 60.0, 9))
    assert [(end.trial_id, end.attempt.number) for end in ends] == expected
    assert all(end.attempt.is_over and end.attempt.failure_class == HOST_GIVEN_UP for end in ends)


def test_a_trial_that_any_host_may_take_is_given_up_when_all_that_match_are_away() -> None:
    (end,) = attempts_to_give_up([trial("")], {"": 3660.0}, 3600.0, 9)
    assert (
        end.attempt.message
        == "every host that the job may go to has been away for 61 min; the limit is 60 min"
    )


def test_what_was_given_up_is_not_given_up_again() -> None:
    trials = {"t": trial("gone", LOST)}
    for _ in itertools.repeat(None, 3):
        for end in attempts_to_give_up(trials.values(), {"gone": 61.0}, 60.0, 9):
            trials[end.trial_id] = trials[end.trial_id].with_attempt(end.attempt)
    assert [attempt.number for attempt in trials["t"].attempts] == [1, 2]
