"""`fleet-controller` as a process of its own: killed, stopped, doubled, and asked through its gRPC
door.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fleet_controller.cli.controller_client import ControllerClient
from fleet_controller.core.controller_api import JobDetail
from fleet_protos.errors import ConfigError, Conflict, FleetError, HostUnreachable, NotFound
from fleet_transport.sockets import listen_address
from tests.fakes.agent import FakeAgent
from tests.fakes.controller_daemon import LIMIT_S, daemon

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


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[FakeAgent]:
    agent = FakeAgent(f"unix:{tmp_path}/a.sock")
    await agent.up()
    yield agent
    await agent.down()


async def finished(remote: ControllerClient, job_id: str) -> JobDetail:
    async with asyncio.timeout(LIMIT_S):
        async for _ in remote.watch(job_id):
            pass
    return await remote.job(job_id)


async def test_a_controller_killed_between_storing_and_acknowledging_stores_nothing_twice(
    tmp_path: Path, agent: FakeAgent
) -> None:
    agent.holds_acknowledgements = True
    agent.replays = (
        True  # and the agent forgets what it was asked for: only the store can tell what it holds
    )
    async with daemon(tmp_path / "state", "--agent", agent.address) as first:
        await first.serving()
        async with first.remote() as remote:
            job_id = await remote.submit(JOB, "job.yaml")
        async with asyncio.timeout(LIMIT_S):
            await agent.asked_to_acknowledge.wait()
        first.process.kill()
        await first.ended()
    assert agent.acknowledged == 0
    agent.holds_acknowledgements = False
    async with daemon(tmp_path / "state", "--agent", agent.address) as second:
        await second.serving()
        async with second.remote() as remote:
            detail = await finished(remote, job_id)
            runs = (await remote.results(job_id)).runs
    assert (detail.job.state, {trial.attempt for trial in detail.trials}) == ("done", {1})
    assert Counter((run.trial_id, run.attempt, run.run.index) for run in runs) == Counter(
        (trial.trial_id, 1, index) for trial in detail.trials for index in (1, 2, 3)
    )


async def test_sigterm_ends_it_with_exit_code_0_and_its_socket_was_its_owners_alone(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path / "state") as one:
        await one.serving()
        path = listen_address(one.state, "controller").removeprefix("unix:")
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(one.state).st_mode) == 0o700
        one.process.send_signal(signal.SIGTERM)
        code, told = await one.ended()
        assert (code, told.splitlines()[-1].endswith("stopped"), "Traceback" in told) == (
            0,
            True,
            False,
        )


async def test_a_second_one_in_the_same_folder_says_who_has_it(tmp_path: Path) -> None:
    async with daemon(tmp_path / "state") as one:
        await one.serving()
        async with daemon(tmp_path / "state") as two:
            code, told = await two.ended()
            assert (
                code,
                f"(pid {one.process.pid}) runs a controller" in told,
                "Traceback" in told,
            ) == (2, True, False)


async def test_it_listens_on_no_network_without_certificates(tmp_path: Path) -> None:
    async with daemon(tmp_path / "state", "--listen", "0.0.0.0:0") as one:
        code, told = await one.ended()
        assert (code, "needs certificates" in told, "Traceback" in told) == (2, True, False)


async def test_a_database_that_cannot_be_reached_is_the_users_error_and_its_password_stays_secret(
    tmp_path: Path,
) -> None:
    for store in ("postgresql+psycopg://me:hush@127.0.0.1:1/x", "nonsense://me:hush@x", "://hush"):
        async with daemon(tmp_path / "state", "--store", store) as one:
            code, told = await one.ended()
            assert (code, "cannot open the store" in told, "Traceback" in told, "hush" in told) == (
                2,
                True,
                False,
                False,
            )


async def test_errors_keep_their_kind_and_their_hint_on_the_way(
    tmp_path: Path, agent: FakeAgent
) -> None:
    async with daemon(tmp_path / "state", "--agent", agent.address) as one:
        await one.serving()
        async with one.remote() as remote:
            first = await remote.submit(JOB, "job.yaml")
            await finished(remote, first)
            second = await remote.submit(JOB, "job.yaml")
            await finished(remote, second)
            assert (
                await remote.job(first[:-1] if first[:-1] != second[:-1] else first)
            ).job.job_id == first
            told = [
                await refused(remote.job("nothing")),
                await refused(remote.job("job-")),
                await refused(remote.trial(f"{first}-b1-v1", 7, False)),
                await refused(remote.submit("kind: Jbo\n", "job.yaml")),
            ]
    kinds = [NotFound, ConfigError, NotFound, ConfigError]
    assert [type(error) for error in told] == kinds
    assert told[0].message == "there is no job 'nothing'"
    assert told[0].hint == "`fleetctl ls` lists all jobs"
    assert first in told[1].message
    assert second in told[1].message


async def refused(call: object) -> FleetError:
    with pytest.raises(FleetError) as raised:
        await call  # type: ignore[misc]
    return raised.value


async def test_without_agents_a_job_is_refused_and_the_controller_lives_on(tmp_path: Path) -> None:
    async with daemon(tmp_path / "state") as one:
        await one.serving()
        async with one.remote() as remote:
            assert isinstance(await refused(remote.submit(JOB, "job.yaml")), HostUnreachable)
            assert (await remote.jobs(), await remote.hosts()) == ((), ())


async def test_metrics_show_trials_by_outcome_and_the_last_run(
    tmp_path: Path, agent: FakeAgent
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with daemon(
        tmp_path / "state", "--agent", agent.address, "--metrics-port", str(port)
    ) as one:
        await one.serving()
        async with one.remote() as remote:
            await finished(remote, await remote.submit(JOB, "job.yaml"))
        text = await asyncio.to_thread(
            lambda: (
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)
                .read()
                .decode()
            )
        )
    assert 'fleet_trials{outcome="ok",phase="over"} 4.0' in text
    labels = 'engine="simulated",host="here",job="job",variant="nccl=tuned"'
    assert f'fleet_runs_total{{{labels},void="false",workload="single"}} 6.0' in text
    assert f'fleet_run_output_tokens_per_second{{{labels},workload="single"}} 80.0' in text


async def test_a_database_of_another_controller_is_refused(tmp_path: Path) -> None:
    store = str(tmp_path / "shared.sqlite3")
    async with daemon(tmp_path / "one", "--store", store) as one:
        await one.serving()
        async with daemon(tmp_path / "two", "--store", store) as two:
            code, told = await two.ended()
            assert (code, f"pid {one.process.pid}" in told) == (Conflict.exit_code, True)
