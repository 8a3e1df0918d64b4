"""The disk of a controller fills up: nothing is begun or acknowledged that is not stored, it is
told, and all goes on with room again.
"""

from __future__ import annotations

import asyncio
import hashlib
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fleet_controller.cli.controller_client import ControllerClient
from fleet_controller.core.controller_api import is_job_over
from fleet_protos import events as ev
from fleet_protos.trial_types import Artifact, Phase
from tests.fakes.agent import FakeAgent, run_of
from tests.fakes.looks import eventually
from tests.fakes.small_disk import SmallDisk

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
async def controller_on(
    disk: SmallDisk, folder: Path, agent: FakeAgent, *flags: str
) -> AsyncIterator[ControllerClient]:
    door = f"unix:{folder}/c.sock"
    argv = (
        "-m",
        "fleet_controller.app.main",
        "--state",
        str(disk.folder),
        "--agent",
        agent.address,
        "--listen",
        door,
        *flags,
    )
    process = disk.start(*argv, log=folder / "log")
    try:
        await eventually(
            lambda: asyncio.to_thread((folder / "log").read_text),
            lambda text: "listening on" in text,
        )
        async with ControllerClient(door) as remote:
            yield remote
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 60)
    assert process.returncode == 0, (folder / "log").read_text()


@pytest.fixture
def disk(tmp_path: Path) -> SmallDisk:
    return SmallDisk(tmp_path / "state", "8m")


async def test_a_store_without_room_stops_what_must_be_noted_and_goes_on_after(
    disk: SmallDisk, tmp_path: Path, agent: FakeAgent
) -> None:
    async with controller_on(disk, tmp_path, agent) as remote:
        job_id = await remote.submit(JOB, "job.yaml")
        await eventually(remote.jobs, lambda _: bool(agent.started))
        (spec,) = agent.started
        await eventually(remote.jobs, lambda _: agent.acknowledged == len(agent.journal))
        disk.fill()
        for index in range(1, 200):  # more than fits into what the store's files had taken before
            agent.tell(spec, run_of(spec, index))
            agent.tell(spec, ev.ServerFailed(log_tail="x" * 4000), Phase.MEASURING)
        (host,) = await eventually(
            remote.hosts, lambda hosts: "the store cannot be used" in hosts[0].message
        )
        assert "full" in host.message
        (job,) = await eventually(
            remote.jobs, lambda jobs: "the store cannot be used" in jobs[0].trouble
        )
        assert (job.job_id, job.state) == (job_id, "running")
        described, stored = agent.described, agent.acknowledged
        await asyncio.sleep(3)  # as long as it takes to see that it is not asked over and over
        assert agent.described - described < 10
        assert stored == agent.acknowledged < len(agent.journal)
        disk.free()
        agent.end(spec)
        await eventually(remote.jobs, lambda _: len(agent.started) == 2)
        agent.tell(agent.started[1], run_of(spec, 1))
        agent.end(agent.started[1])
        await eventually(remote.jobs, lambda jobs: is_job_over(jobs[0]))
        detail, results = await remote.job(job_id), await remote.results(job_id)
        await eventually(remote.jobs, lambda _: agent.acknowledged == len(agent.journal))
    assert (detail.job.state, detail.job.trouble, {trial.attempt for trial in detail.trials}) == (
        "done",
        "",
        {1},
    )
    seen = Counter((run.trial_id, run.run.index) for run in results.runs)
    assert (len(seen), set(seen.values())) == (199 + 1, {1})
    log = (tmp_path / "log").read_text()
    assert 1 <= log.count("no trials are started: the store cannot be used") < 5
    assert "Traceback" not in log


async def test_files_without_room_wait_and_cost_no_run(
    disk: SmallDisk, tmp_path: Path, agent: FakeAgent
) -> None:
    content = bytes(range(256)) * 4000
    async with controller_on(
        disk, tmp_path, agent, "--store", str(tmp_path / "store.sqlite3")
    ) as remote:
        await remote.submit(JOB, "job.yaml")
        await eventually(remote.jobs, lambda _: bool(agent.started))
        (spec,) = agent.started
        name = f"{spec.trial_id}/1/single-001.parquet"
        agent.files[name] = content
        disk.fill(left_bytes=300 << 10)
        agent.tell(
            spec,
            run_of(
                spec, 1, artifact=Artifact(name, hashlib.sha256(content).hexdigest(), len(content))
            ),
        )
        (host,) = await eventually(
            remote.hosts, lambda hosts: "files are missing" in hosts[0].message
        )
        assert "No space left on device" in host.message
        assert (await remote.job(spec.job_id)).trials[0].runs == 1
        disk.free()
        await eventually(remote.hosts, lambda hosts: hosts[0].message == "")
        assert (disk.inside / "artifacts" / name).read_bytes() == content
        assert any(agent.offsets), "it went on where it broke off"
