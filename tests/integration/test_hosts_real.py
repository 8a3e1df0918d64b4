"""Two real agents: trials side by side on one host, a look at the hosts meanwhile, and a block that
goes where there is room.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from fleet_controller.app.bootstrap import start_controller
from fleet_controller.app.controller import FleetController
from fleet_controller.core.controller_api import JobDetail, error_messages, is_job_over
from fleet_protos.trial_types import Outcome, Phase, is_void
from tests.fakes.two_hosts import HOSTS, two_hosts

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: job
model: {{path: sim/kimi}}
engine: {{kind: simulated, gpus: {gpus}, args: {{tp_size: {gpus}}}, simulation: {{time_scale: 50}}, stop_timeout: 1s}}
factors: {{nccl: {{default: {{}}, tuned: {{env: {{NCCL_PROTO: LL}}}}}}}}
workloads: {{single: {{concurrency: 1, prompts: builtin:chat, output_tokens: 40}}}}
measure: {{launches: {launches}, runs: {{min: 2, max: 2}}}}
hosts: {{{hosts}}}
"""
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one controller that comes back: agents obey no other before it has stored what they hold."""
    return tmp_path_factory.mktemp("controller")


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with two_hosts(tmp_path_factory.mktemp("hosts")) as addresses:
        yield addresses


@pytest.fixture
async def fleet(agents: list[str], state: Path) -> AsyncIterator[FleetController]:
    async with start_controller(state, agents) as here:
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


async def test_trials_share_a_host_say_so_and_are_not_disturbed_by_a_look(
    fleet: FleetController,
) -> None:
    job_id = await fleet.submit(
        JOB.format(gpus=4, launches=1, hosts=f"share: true, names: [{HOSTS[0]}]"), "job.yaml"
    )
    detail = await until(
        fleet, job_id, lambda detail: all(trial.phase >= Phase.LAUNCHING for trial in detail.trials)
    )
    running = {trial.trial_id for trial in detail.trials if trial.phase < Phase.OVER}
    assert len(running) == 2
    checks = {check.host: check async for check in fleet.check_hosts([])}
    assert all(check.reached and not error_messages(check) for check in checks.values())
    (told,) = (
        finding.message for finding in checks[HOSTS[0]].findings if finding.code == "trial_running"
    )
    assert all(trial_id in told for trial_id in running)
    ended = await until(fleet, job_id, lambda detail: is_job_over(detail.job))
    assert [(trial.outcome, trial.attempt) for trial in ended.trials] == [(Outcome.OK, 1)] * 2
    runs = [stored.run for stored in (await fleet.results(job_id)).runs]
    assert len(runs) == 4
    assert all(
        "shared_host" in [gate.code for gate in run.gates] and not is_void(run) for run in runs
    )


async def test_blocks_of_any_host_are_spread_over_free_hosts(fleet: FleetController) -> None:
    job_id = await fleet.submit(
        JOB.format(gpus=8, launches=2, hosts="placement: any_host"), "job.yaml"
    )
    ended = await until(fleet, job_id, lambda detail: is_job_over(detail.job))
    assert ended.job.state == "done"
    assert {(trial.block, trial.host) for trial in ended.trials} == {(1, HOSTS[0]), (2, HOSTS[1])}
