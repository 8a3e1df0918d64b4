"""One real SGLang server over two nodes on loopback, each with its own agent: tensor parallel over
gloo, all or nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from fleet_controller.app.bootstrap import start_controller
from fleet_controller.app.controller import FleetController
from fleet_controller.core.controller_api import JobDetail, is_job_over
from fleet_protos import events as ev
from fleet_protos.trial_types import Outcome, Phase
from tests.fakes.two_hosts import two_hosts
from tests.real_sglang.environment import ensure

pytestmark = pytest.mark.real_sglang

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: real-gang
model: {{path: {folder}/tiny-model}}
engine:
  kind: sglang
  nodes: 2
  python: {folder}/bin/python
  ready_timeout: 5m
  gpus: 0
  args: {{device: cpu, load_format: dummy, tp_size: 2, attention_backend: intel_amx, sampling_backend: pytorch, grammar_backend: none,
          max_total_tokens: 8192, max_running_requests: 4}}
  env: {{SGLANG_USE_CPU_ENGINE: "1", HF_HUB_OFFLINE: "1", TORCHDYNAMO_DISABLE: "1", SGLANG_CPU_OMP_THREADS_BIND: "0|0"}}
workloads: {{single: {{concurrency: 1, requests: 2, prompts: builtin:chat, output_tokens: {tokens}}}}}
measure: {{launches: 1, runs: {{min: 2, max: 2}}}}
"""
LIMIT_S = 400.0
SOON_S = 60.0


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with two_hosts(tmp_path_factory.mktemp("gang")) as addresses:
        yield addresses


@pytest.fixture
async def fleet(agents: list[str], tmp_path: Path) -> AsyncIterator[FleetController]:
    async with start_controller(tmp_path / "controller", agents) as here:
        yield here.fleet


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


async def launched(fleet: FleetController, trial_id: str) -> ev.ServerLaunched:
    detail = await fleet.trial(trial_id, 1, with_log=False)
    return next(event.body for event in detail.events if isinstance(event.body, ev.ServerLaunched))


async def test_a_model_over_two_nodes_is_measured_as_one_trial(fleet: FleetController) -> None:
    job_id = await fleet.submit(JOB.format(folder=ensure(), tokens=16), "job.yaml")
    detail = await until(fleet, job_id, lambda detail: is_job_over(detail.job))
    lead = detail.trials[0].trial_id
    log = (await fleet.trial(f"{lead}_n1", 1, with_log=True)).server_log
    assert (detail.job.state, detail.job.trials, detail.trials[0].message) == ("done", 1, ""), log
    assert [run.run.output_tokens for run in (await fleet.results(job_id)).runs] == [32, 32]
    assert "--node-rank" in (await launched(fleet, f"{lead}_n1")).argv


async def test_a_node_that_is_killed_ends_the_whole_server(fleet: FleetController) -> None:
    job_id = await fleet.submit(JOB.format(folder=ensure(), tokens=3500), "job.yaml")
    detail = await until(
        fleet, job_id, lambda detail: detail.trials[0].phase in (Phase.WARMING, Phase.MEASURING)
    )
    lead = detail.trials[0].trial_id
    os.kill((await launched(fleet, f"{lead}_n1")).pid, signal.SIGKILL)
    await until(fleet, job_id, lambda detail: detail.trials[0].attempt == 2, SOON_S)
    first = (await fleet.trial(lead, 1, with_log=False)).status
    assert first.outcome is Outcome.FAILED
    assert first.message.startswith("node 1 on host host-b: "), first.message
    await fleet.cancel(job_id)
    await until(fleet, job_id, lambda detail: is_job_over(detail.job), SOON_S)
