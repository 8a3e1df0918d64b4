"""Hosts that are drained, set aside, busy or shared: who gets trials, what is told, and what holds
over a restart.
"""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fleet_controller.app.bootstrap import start_controller
from fleet_controller.app.controller import FleetController
from fleet_controller.cli.commands.hosts import Action, check, drain, undrain
from fleet_controller.cli.controller_client import ControllerClient
from fleet_controller.cli.terminal.console import Console
from fleet_controller.core.controller_api import JobDetail, error_messages, is_job_over
from fleet_controller.hosts.targets import FleetTargets, targets_of
from fleet_protos import events as ev
from fleet_protos.errors import ConfigError, ErrorKind, ExitCode, NotFound
from fleet_protos.trial_types import Outcome, Phase, TrialSpec
from fleet_protos.v1 import agent_pb2 as pb
from tests.fakes.agent import FakeAgent

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: {name}
model: {{path: sim/kimi}}
engine: {{kind: simulated, gpus: {gpus}, args: {{tp_size: {gpus}}}, simulation: {{time_scale: 20}}}}
factors: {{nccl: {{default: {{}}, tuned: {{env: {{NCCL_PROTO: LL}}}}}}}}
workloads: {{single: {{concurrency: 1, prompts: builtin:chat, output_tokens: 50}}}}
measure: {{launches: {launches}}}
priority: {priority}
hosts: {{{hosts}}}
"""
LIMIT_S = 20.0
RESTARTED = ev.TrialOver(
    Outcome.FAILED, ErrorKind.AGENT_RESTARTED, "agent_restarted", "it restarted"
)
LOST = ev.TrialOver(Outcome.FAILED, ErrorKind.DEPLOY_FAILED, "gpu_lost", "GPU3 answers lost")


def job(
    name: str = "job", *, launches: int = 1, gpus: int = 8, priority: int = 0, hosts: str = ""
) -> str:
    return JOB.format(name=name, launches=launches, gpus=gpus, priority=priority, hosts=hosts)


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[list[FakeAgent]]:
    found = [
        FakeAgent(f"unix:{tmp_path}/{name}.sock", host=name, agent_id=f"agent-{name}")
        for name in ("a", "b")
    ]
    for agent in found:
        await agent.up()
    yield found
    for agent in found:
        await agent.down()


@asynccontextmanager
async def controller(
    folder: Path, agents: list[FakeAgent], probe_first_s: float = 60.0
) -> AsyncIterator[FleetController]:
    follow = replace(
        FleetTargets(targets_of([agent.address for agent in agents])), probe_first_s=probe_first_s
    )
    async with start_controller(folder / "controller", follow) as here:
        yield here.fleet


async def until(
    fleet: FleetController, job_id: str, wanted: Callable[[JobDetail], bool]
) -> JobDetail:
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


# Drain


async def test_a_drained_host_gets_nothing_and_jobs_say_that_they_wait_for_it(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    async with controller(tmp_path, agents) as fleet:
        await fleet.submit(job("first"), "job.yaml")
        await fleet.drain("b", "new kernel")
        job_id = await fleet.submit(job(), "job.yaml")
        detail = await until(
            fleet, job_id, lambda detail: detail.job.trials_over == 2 and bool(detail.job.trouble)
        )
        assert detail.job.trouble == "waits for b (drained: new kernel; 2 trials)"
        assert [spec.job_name for spec in agents[1].started if spec.job_name == "job"] == []
        await fleet.undrain("b")
        ended = await done(fleet, job_id)
        assert (ended.job.state, ended.job.trouble) == ("done", "")


async def test_what_runs_on_a_host_that_is_drained_is_measured_to_its_end(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agents[0].by_itself = False
    async with controller(tmp_path, agents[:1]) as fleet:
        job_id = await fleet.submit(job(), "job.yaml")
        (spec,) = await started(fleet, job_id, agents[0], 1)
        await fleet.drain("a", "")
        assert [(host.drained, host.active_trial) for host in await fleet.hosts()] == [
            (True, f"{spec.trial_id}/1")
        ]
        agents[0].end(spec)
        detail = await until(fleet, job_id, lambda detail: detail.job.trials_over == 1)
        assert [trial.outcome for trial in detail.trials].count(Outcome.OK) == 1
        assert (agents[0].cancelled, len(agents[0].started)) == ([], 1)


async def test_a_drain_holds_over_a_restart_of_the_controller(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    async with controller(tmp_path, agents) as fleet:
        await fleet.submit(job("first"), "job.yaml")
        await fleet.drain("b", "new kernel")
    async with controller(tmp_path, agents) as fleet:
        job_id = await fleet.submit(job(), "job.yaml")
        await until(fleet, job_id, lambda detail: "b (drained: new kernel" in detail.job.trouble)


async def test_a_host_that_nobody_knows_is_not_drained(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    async with controller(tmp_path, agents) as fleet:
        await fleet.submit(job(), "job.yaml")
        with pytest.raises(NotFound, match="no host c"):
            await fleet.drain("c", "")


# any_host


async def test_blocks_of_any_host_go_where_a_host_is_free_and_stay_whole(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agents[0].by_itself = False
    async with controller(tmp_path, agents) as fleet:
        held = await fleet.submit(job("held", hosts="names: [a]"), "job.yaml")
        await started(fleet, held, agents[0], 1)
        job_id = await fleet.submit(job(launches=3, hosts="placement: any_host"), "job.yaml")
        detail = await done(fleet, job_id)
        assert {(trial.block, trial.host) for trial in detail.trials} == {
            (1, "b"),
            (2, "b"),
            (3, "b"),
        }
        assert all(trial.trial_id.endswith(("-v1", "-v2")) for trial in detail.trials)
        assert {stored.host for stored in (await fleet.results(job_id)).runs} == {"b"}


async def test_a_block_that_has_begun_waits_for_its_host_and_others_move_on(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agents[0].by_itself = agents[1].by_itself = False
    async with controller(tmp_path, agents) as fleet:
        job_id = await fleet.submit(job(launches=3, hosts="placement: any_host"), "job.yaml")
        (on_a,) = await started(fleet, job_id, agents[0], 1)
        (on_b,) = await started(fleet, job_id, agents[1], 1)
        await fleet.drain("a", "")
        agents[0].end(on_a)
        agents[1].by_itself = True
        agents[1].end(on_b)
        detail = await until(fleet, job_id, lambda detail: detail.job.trials_over == 5)
        assert detail.job.trouble == "waits for a (drained; 1 trial)"
        assert {trial.block for trial in detail.trials if trial.host == "a"} == {on_a.block}
        await fleet.undrain("a")
        agents[0].by_itself = True
        assert (await done(fleet, job_id)).job.state == "done"


async def test_a_block_keeps_its_host_over_a_restart_of_the_controller(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agents[0].by_itself = False
    async with controller(tmp_path, agents[:1]) as fleet:
        job_id = await fleet.submit(job(hosts="placement: any_host"), "job.yaml")
        (spec,) = await started(fleet, job_id, agents[0], 1)
    async with controller(tmp_path, agents) as fleet:
        assert {trial.host for trial in (await fleet.job(job_id)).trials} == {"a"}
        agents[0].by_itself = True
        agents[0].end(spec)
        detail = await done(fleet, job_id)
        assert (detail.job.state, len(agents[1].started)) == ("done", 0)


# Turns


async def test_a_job_of_higher_priority_goes_first(tmp_path: Path, agents: list[FakeAgent]) -> None:
    agents[0].by_itself = False
    async with controller(tmp_path, agents[:1]) as fleet:
        held = await fleet.submit(job("held"), "job.yaml")
        (spec,) = await started(fleet, held, agents[0], 1)
        urgent = await fleet.submit(job("urgent", priority=5), "job.yaml")
        agents[0].by_itself = True
        agents[0].end(spec)
        await done(fleet, urgent)
        await done(fleet, held)
        assert [spec.job_name for spec in agents[0].started] == ["held", "urgent", "urgent", "held"]
        assert (await fleet.job(urgent)).job.priority == 5


async def test_trials_of_sharing_jobs_run_side_by_side_and_no_other_joins_them(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agents[0].by_itself = False
    async with controller(tmp_path, agents[:1]) as fleet:
        sharing = await fleet.submit(
            job("sharing", gpus=4, launches=2, hosts="share: true"), "job.yaml"
        )
        first = list(await started(fleet, sharing, agents[0], 2))
        alone = await fleet.submit(job("alone", gpus=1), "job.yaml")
        assert {spec.shared for spec in first} == {True}
        agents[0].by_itself = True
        agents[0].end(first[0])
        await until(fleet, sharing, lambda detail: detail.job.trials_over >= 1)
        agents[0].end(first[1])
        await done(fleet, sharing)
        await done(fleet, alone)
        assert_never_mixed(agents[0].journal)


def assert_never_mixed(journal: list[ev.Event]) -> None:
    """Whoever begins while something runs shares, and so does what runs."""
    running: dict[str, bool] = {}
    for event in journal:
        if isinstance(event.body, ev.TrialAccepted):
            running[event.trial_id] = event.body.spec.shared
            assert len(running) == 1 or all(running.values())
        elif event.phase is Phase.OVER:
            del running[event.trial_id]


# Set aside


async def test_a_host_that_fails_again_and_again_is_set_aside_and_comes_back(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agent = agents[0]
    agent.by_itself = False
    agent.findings = [pb.HostFinding(code="gpu_lost", severity="error", message="GPU3 is gone")]
    async with controller(tmp_path, agents[:1], probe_first_s=0.1) as fleet:
        job_id = await fleet.submit(job(), "job.yaml")
        for number in (1, 2, 3):
            agent.end((await started(fleet, job_id, agent, number))[-1], RESTARTED)
        detail = await until(fleet, job_id, lambda detail: "quarantined" in detail.job.trouble)
        trial_id = agent.started[0].trial_id
        why = f"agent_restarted in {trial_id}, {trial_id} (attempt 2), {trial_id} (attempt 3)"
        assert detail.job.trouble == f"waits for a (quarantined: {why}; 2 trials)"
        (status,) = await fleet.hosts()
        assert (status.aside, status.aside_since_unix_ns > 0) == (why, True)
        async with asyncio.timeout(LIMIT_S):
            await agent.asked_to_check.wait()
        assert len(agent.started) == 3
        agent.findings, agent.by_itself = [], True
        assert (await done(fleet, job_id)).job.state == "done"


async def test_broken_hardware_sets_a_host_aside_at_once_and_over_a_restart(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agents[0].by_itself = False
    async with controller(tmp_path, agents[:1]) as fleet:
        job_id = await fleet.submit(job(), "job.yaml")
        agents[0].end((await started(fleet, job_id, agents[0], 1))[0], LOST)
        await until(fleet, job_id, lambda detail: "quarantined" in detail.job.trouble)
    async with controller(tmp_path, agents[:1]) as fleet:
        await until(fleet, job_id, lambda detail: "quarantined" in detail.job.trouble)
        await fleet.undrain("a")
        agents[0].by_itself = True
        detail = await done(fleet, job_id)
        assert [trial.outcome for trial in detail.trials] == [Outcome.FAILED, Outcome.OK]


async def test_what_the_user_must_edit_sets_no_host_aside(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agents[0].by_itself = False
    async with controller(tmp_path, agents[:1]) as fleet:
        for number in range(4):
            job_id = await fleet.submit(job(f"job{number}"), "job.yaml")
            for kind in (ErrorKind.SERVER_OOM, ErrorKind.CONFIG):
                spec = (await started(fleet, job_id, agents[0], len(agents[0].started) + 1))[-1]
                agents[0].end(spec, ev.TrialOver(Outcome.FAILED, kind, "oom_weights", "too large"))
            await done(fleet, job_id)
        assert [host.aside for host in await fleet.hosts()] == [""]


# Cancel, check


async def test_trials_of_a_cancelled_job_that_never_began_say_so(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agents[0].by_itself = False
    async with controller(tmp_path, agents[:1]) as fleet:
        job_id = await fleet.submit(job(), "job.yaml")
        await started(fleet, job_id, agents[0], 1)
        await fleet.cancel(job_id)
        detail = await done(fleet, job_id)
        told = [(trial.phase, trial.outcome, trial.attempt) for trial in detail.trials]
        assert sorted(told) == [
            (Phase.OVER, Outcome.CANCELLED, 0),
            (Phase.OVER, Outcome.CANCELLED, 1),
        ]
    async with controller(tmp_path, agents[:1]) as fleet:
        assert {trial.outcome for trial in (await fleet.job(job_id)).trials} == {Outcome.CANCELLED}


async def test_an_agent_that_cannot_look_at_its_host_is_told_and_was_reached(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agents[0].is_old = True
    async with controller(tmp_path, agents[:1]) as fleet:
        await done(fleet, await fleet.submit(job(), "job.yaml"))
        (check,) = [check async for check in fleet.check_hosts(["a"])]
        assert (check.reached, error_messages(check), check.findings[0].code) == (
            True,
            "",
            "not_looked_at",
        )


async def test_a_check_ends_with_what_it_found_as_exit_code(
    tmp_path: Path, agents: list[FakeAgent], capsys: pytest.CaptureFixture[str]
) -> None:
    async with (
        start_controller(tmp_path / "controller", [agent.address for agent in agents]) as here,
        ControllerClient(here.address) as remote,
    ):
        await done(here.fleet, await here.fleet.submit(job(), "job.yaml"))

        async def code(action: Action, *hosts: str, reason: str = "") -> int:
            return await action(
                remote,
                Namespace(action=action.__name__, hosts=list(hosts), json=True, reason=reason),
                Console(False, False, None),
            )

        assert await code(check) == ExitCode.DONE
        agents[0].findings = [
            pb.HostFinding(code="gpu_lost", severity="error", message="GPU3 is gone", hint="look")
        ]
        assert (await code(check), await code(check, "b")) == (ExitCode.FAILED, ExitCode.DONE)
        await agents[1].down()
        capsys.readouterr()
        assert await code(check) == ExitCode.UNREACHABLE
        told = {host["host"]: host for host in json.loads(capsys.readouterr().out)["hosts"]}
        assert [
            (told[name]["reached"], told[name]["ok"], told[name]["findings"][0]["code"])
            for name in ("a", "b")
        ] == [
            (True, False, "gpu_lost"),
            (False, False, "not_reached"),
        ]
        assert await code(drain, "a", reason="new kernel") == ExitCode.DONE
        assert json.loads(capsys.readouterr().out)["hosts"] == [
            {"host": "a", "drained": True, "active_trial": ""}
        ]
        assert await code(undrain, "a") == ExitCode.DONE
        for action in (drain, undrain):
            with pytest.raises(ConfigError, match="needs the name of a host"):
                await code(action)
        with pytest.raises(ConfigError, match="no host c"):
            await code(check, "c")


async def test_every_host_is_looked_at_and_one_that_is_away_is_told(
    tmp_path: Path, agents: list[FakeAgent]
) -> None:
    agents[0].findings = [
        pb.HostFinding(
            code="disk_low", severity="warning", message="1 MiB are free", hint="make room"
        )
    ]
    async with controller(tmp_path, agents) as fleet:
        await fleet.submit(job(), "job.yaml")
        await fleet.drain("a", "new kernel")
        await agents[1].down()
        checks = {check.host: check async for check in fleet.check_hosts([])}
        assert [
            finding.code for finding in checks["a"].findings if finding.code != "version_differs"
        ] == ["disk_low", "drained"]
        assert (checks["a"].reached, checks["b"].reached, checks["b"].findings[0].code) == (
            True,
            False,
            "not_reached",
        )
