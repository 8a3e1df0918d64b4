"""The results of a job with very many runs: in parts of bounded size, only for a caller that is
there, or refused with a reason.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from sqlalchemy import event, text

from fleet_controller.app.service import serve_controller
from fleet_controller.cli.controller_client import ControllerClient
from fleet_controller.core.controller_api import Controller
from fleet_controller.core.trial_state import Attempt
from fleet_controller.jobs.queries import MOST_RUNS, ReadOnlyController
from fleet_controller.store.rows import JobRow
from fleet_controller.store.store import Store
from fleet_protos.errors import ConfigError, HostUnreachable
from fleet_protos.trial_types import EngineKind, EngineSpec, Outcome, Phase, TrialSpec
from fleet_protos.v1 import controller_pb2 as pb
from tests.fakes.controller_daemon import daemon

RUNS = 5_001  # of one trial: more than a part holds
PARTS = 3
FILL = """
with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < :runs)
insert into runs select :trial, 1, 'single', n, :run from numbers
"""
RUN = '{"workload": "single", "index": 1, "metrics": {"output_tok_s": 80.0}}'


def filled(folder: Path, runs: int, trials: int) -> Store:
    """A store whose job has trials with so many runs each."""
    store = Store.open(str(folder / "store.sqlite3"))
    specs = [
        TrialSpec(f"job-1-b{block}-v1", 1, "job-1", "job", "default", {}, block, "here",
                  EngineSpec(EngineKind.SIMULATED))
        for block in range(1, trials + 1)
    ]  # fmt: skip
    row = JobRow("job-1", "job", "name: job\n", "job.yaml", 5, "simulated", 20.0, 60.0)
    store.add_job(row, specs)
    over = Attempt(1, phase=Phase.OVER, outcome=Outcome.OK)
    store.save_attempt([spec.trial_id for spec in specs], over)
    with store.engine.begin() as connection:
        for spec in specs:
            values = {"trial": spec.trial_id, "runs": runs, "run": RUN}
            connection.execute(text(FILL), values)
    return store


def count_reads(store: Store) -> list[str]:
    """Every query for runs from now on."""
    queries: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        if "runs.run" in statement:
            queries.append(statement)

    event.listen(store.engine, "before_cursor_execute", note)
    return queries


async def test_many_runs_arrive_in_parts_and_none_is_read_for_a_caller_that_is_gone(
    tmp_path: Path,
) -> None:
    store = await asyncio.to_thread(filled, tmp_path, RUNS, PARTS)
    reads = count_reads(store)
    controller: Controller = ReadOnlyController(store, tmp_path)
    async with (
        serve_controller(controller, f"unix:{tmp_path}/c.sock") as address,
        ControllerClient(address) as client,
    ):
        parts = client.result_parts("job-1")
        first = await anext(parts)
        assert (len(first.runs), first.yaml) == (RUNS, "name: job\n")
        await parts.aclose()  # type: ignore[attr-defined] # it is a generator
        for_the_lost_caller = len(reads)
        whole = await client.results("job-1")
        assert len(whole.runs) == RUNS * PARTS
        assert whole.runs[-1].trial_id == f"job-1-b{PARTS}-v1"
        assert for_the_lost_caller < PARTS
        assert len(reads) <= PARTS + PARTS - 1, "it was read on after the caller was gone"
    store.close()


async def test_a_job_with_more_runs_than_can_be_read_at_once_is_refused_before_any_is_read(
    tmp_path: Path,
) -> None:
    store = await asyncio.to_thread(filled, tmp_path, MOST_RUNS // 2 + 1, 2)
    reads = count_reads(store)
    controller: Controller = ReadOnlyController(store, tmp_path)
    async with (
        serve_controller(controller, f"unix:{tmp_path}/c.sock") as address,
        ControllerClient(address) as client,
    ):
        with pytest.raises(ConfigError, match=r"job job-1 has 250,002 stored runs") as refused:
            await client.results("job-1")
        assert "fewer launches, runs or workloads in one job" in refused.value.hint
    assert reads == []
    store.close()


async def test_a_controller_that_is_busy_is_not_said_to_be_away(tmp_path: Path) -> None:
    async with daemon(tmp_path / "state", "--agent", f"unix:{tmp_path}/none.sock") as controller:
        await controller.serving()
        address = controller.remote()._address
        async with ControllerClient(address, limit_s=1.0) as client:
            assert await client.jobs() == ()
            os.kill(controller.process.pid, signal.SIGSTOP)
            with pytest.raises(HostUnreachable, match="is busy: it did not answer within 1 s") as e:
                await client.jobs()
            os.kill(controller.process.pid, signal.SIGCONT)
            assert "running" not in e.value.hint
            assert await client.jobs() == ()


GET_RESULTS = "/fleet_protos.v1.ControllerService/GetResults"


async def test_a_client_from_before_there_were_parts_reads_a_small_job(tmp_path: Path) -> None:
    store = await asyncio.to_thread(filled, tmp_path, 5, 2)
    async with (
        serve_controller(ReadOnlyController(store, tmp_path), f"unix:{tmp_path}/c.sock") as address,
        aio.insecure_channel(address) as channel,
    ):
        call = channel.unary_unary(
            GET_RESULTS, pb.GetResultsRequest.SerializeToString, pb.GetResultsResponse.FromString
        )
        assert len((await call(pb.GetResultsRequest(job_id="job-1"))).runs) == 10
    store.close()
