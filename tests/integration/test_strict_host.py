"""A real agent with a configuration file, and a controller: what it does not allow is told, and
never tried again.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from fleet_controller.app.bootstrap import start_controller
from fleet_protos.errors import ConfigError, ErrorKind
from fleet_protos.trial_types import Outcome
from fleet_transport.sockets import listen_address

LIMIT_S = 60.0
CONFIG = """\
host = "gpu01"
state = "{state}"
gpus = 8
simulated_gpus = 8

[allow]
images = ["lmsysorg/sglang:*"]

[server]
python = "{python}"

[server.env]
NCCL_SOCKET_IFNAME = "lo"
"""
JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: job
model: {path: sim/kimi}
engine: ENGINE
workloads: {single: {concurrency: 1, prompts: builtin:chat, output_tokens: 20}}
measure: {launches: 1, runs: {min: 2, max: 2}}
"""


@dataclass
class StrictAgent:
    """An agent that was started with a file."""

    folder: Path
    address: str


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StrictAgent]:
    folder = tmp_path_factory.mktemp("strict")
    file = folder / "etc" / "agent.toml"
    file.parent.mkdir()
    file.write_text(CONFIG.format(state=folder / "state", python=sys.executable))
    file.chmod(0o600)
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fleet_agent.main", "--config", str(file)],
            stderr=log,
            start_new_session=True,
        )
    agent = StrictAgent(folder, listen_address(folder / "state", "agent"))
    try:
        with grpc.insecure_channel(agent.address) as channel:
            grpc.channel_ready_future(channel).result(timeout=LIMIT_S)
        yield agent
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=LIMIT_S)


async def test_a_variable_that_is_not_allowed_ends_the_trial_for_good_with_the_line_that_would_allow_it(
    tmp_path: Path, agent: StrictAgent
) -> None:
    job = JOB.replace(
        "ENGINE", "{kind: simulated, gpus: 8, env: {LD_PRELOAD: /tmp/evil.so, NCCL_PROTO: LL}}"
    )
    async with (
        start_controller(tmp_path / "controller", [agent.address]) as here,
        asyncio.timeout(LIMIT_S),
    ):
        job_id = await here.fleet.submit(job, "job.yaml")
        async for _ in here.fleet.watch(job_id):
            pass
        (trial,) = (await here.fleet.job(job_id)).trials
    assert (trial.outcome, trial.kind, trial.failure_class, trial.attempt) == (
        Outcome.FAILED,
        ErrorKind.CONFIG,
        "refused_by_agent",
        1,
    )
    for words in (
        "host gpu01 does not allow trial",
        "engine.env.LD_PRELOAD",
        "allow: {env: [LD_PRELOAD]}",
        "fleetctl deploy",
    ):
        assert words in trial.message
    assert "LD_PRELOAD names libraries" in (agent.folder / "agent.log").read_text()
    assert not list((agent.folder / "state" / "artifacts").glob(f"{trial.trial_id}/*"))


EARLY = {
    "{kind: sglang, gpus: 1, python: /tmp/evil/bin/python3}": "python: [/tmp/evil/bin/python3]",
    "{kind: sglang, gpus: 1, container: {image: 'evil/sglang:v1'}}": "images: [evil/sglang:v1]",
}


@pytest.mark.parametrize("engine", EARLY)
async def test_a_python_or_image_that_is_not_allowed_is_told_at_the_submit(
    tmp_path: Path, agent: StrictAgent, engine: str
) -> None:
    async with (
        start_controller(tmp_path / "controller", [agent.address]) as here,
        asyncio.timeout(LIMIT_S),
    ):
        with pytest.raises(ConfigError, match="host gpu01 does not allow") as refused:
            await here.fleet.submit(JOB.replace("ENGINE", engine), "job.yaml")
        assert EARLY[engine] in refused.value.hint
        assert await here.fleet.jobs() == ()


async def test_a_job_without_a_python_takes_the_hosts_own_and_its_variables(
    tmp_path: Path, agent: StrictAgent
) -> None:
    """The Python of this test holds no SGLang: the launch fails, and shows with what it was
    launched.
    """
    model = tmp_path / "model"
    model.mkdir()
    engine = "{kind: sglang, gpus: 1, env: {NCCL_PROTO: LL}, args: {load_format: dummy}}"
    job = JOB.replace("ENGINE", engine).replace("sim/kimi", str(model))
    (model / "config.json").write_text("{}")
    (model / "tokenizer.json").write_text("{}")
    async with (
        start_controller(tmp_path / "controller", [agent.address]) as here,
        asyncio.timeout(LIMIT_S),
    ):
        job_id = await here.fleet.submit(job, "job.yaml")
        async for _ in here.fleet.watch(job_id):
            if (await here.fleet.job(job_id)).trials[0].outcome is Outcome.FAILED:
                break
        (trial,) = (await here.fleet.job(job_id)).trials
        detail = await here.fleet.trial(trial.trial_id, 1, True)
    bodies = {type(event.body).__name__: event.body for event in detail.events}
    assert bodies["TrialAccepted"].spec.engine.python == sys.executable
    assert bodies["TrialAccepted"].spec.engine.env == {
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_PROTO": "LL",
    }
    if "ServerLaunched" in bodies:  # a machine without GPUs may say so before
        assert bodies["ServerLaunched"].argv[0] == sys.executable
        assert bodies["ServerLaunched"].env["NCCL_SOCKET_IFNAME"] == "lo"
