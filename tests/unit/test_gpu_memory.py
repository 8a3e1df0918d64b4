"""Owns the promises about GPU memory after a server: waited for, told when it stays, its GPUs set
aside until it is back.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from fleet_agent.core.allocation import GpuPool, claim_gpus
from fleet_agent.host.gpu_memory import classify_holder
from fleet_agent.host.gpus import RecordedGpus
from fleet_agent.host.host_state import HostState
from fleet_knowledge.host.gpu import GpuProcess
from fleet_protos.errors import Conflict
from fleet_protos.trial_types import EngineKind

SHORT_S, LONG_S = 0.2, 30.0


class Box:
    """Two recorded GPUs whose used memory a test sets."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "gpus.json"
        self.hold(400, 400)

    def hold(self, *used_mib: int, pid: int = 0) -> None:
        gpus = [
            {"index": index, "memory_mib": 80000, "memory_used_mib": used}
            for index, used in enumerate(used_mib)
        ]
        processes = (
            [{"pid": pid, "name": "sglang::scheduler_TP1", "used_mib": used_mib[1], "gpu": 1}]
            if pid
            else []
        )
        spare = self.path.with_suffix(".new")
        spare.write_text(json.dumps({"gpus": gpus, "processes": processes}))
        os.replace(spare, self.path)

    def view(self, limit_s: float) -> HostState:
        return HostState(RecordedGpus(self.path), self.path.parent, limit_s)


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


async def test_memory_that_is_back_within_the_tolerance_leaves_nothing(box: Box) -> None:
    view = box.view(SHORT_S)
    baseline = await view.memory_baseline(EngineKind.SGLANG, (0, 1))
    box.hold(400 + 512, 400)
    assert (baseline, await view.wait_memory_released(baseline), dict(view.quarantined)) == (
        {0: 400, 1: 400},
        (),
        {},
    )


async def test_memory_that_comes_back_late_is_waited_for(box: Box) -> None:
    view = box.view(LONG_S)
    baseline = await view.memory_baseline(EngineKind.SGLANG, (0, 1))
    box.hold(400, 66000)
    async with asyncio.timeout(LONG_S):
        settling = asyncio.ensure_future(view.wait_memory_released(baseline))
        await asyncio.sleep(0)
        assert not settling.done()
        box.hold(400, 400)
        assert await settling == ()


async def test_memory_that_stays_is_told_with_gpu_size_and_pid_and_its_gpu_is_set_aside(
    box: Box,
) -> None:
    view = box.view(SHORT_S)
    baseline = await view.memory_baseline(EngineKind.SGLANG, (0, 1))
    box.hold(400, 65936, pid=4194002)
    (line,) = await view.wait_memory_released(baseline)
    assert "GPU1 still holds 64.0 GiB" in line and "pid 4194002" in line
    assert dict(view.quarantined) == {1: line}


async def test_no_trial_gets_a_gpu_that_is_set_aside_and_the_reason_is_told(box: Box) -> None:
    view = box.view(SHORT_S)
    baseline = await view.memory_baseline(EngineKind.SGLANG, (0, 1))
    box.hold(400, 65936, pid=4194002)
    await view.wait_memory_released(baseline)
    with pytest.raises(Conflict, match="quarantined: GPU1 still holds"):
        claim_gpus(GpuPool((0, 1), quarantined=view.quarantined), "t/1", 2)
    assert claim_gpus(GpuPool((0, 1), quarantined=view.quarantined), "t/1", 1)[1] == (0,)


async def test_a_gpu_is_given_back_once_its_memory_is_back(box: Box) -> None:
    view, stopping = box.view(SHORT_S), asyncio.Event()
    baseline = await view.memory_baseline(EngineKind.SGLANG, (0, 1))
    async with asyncio.timeout(LONG_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(view.watch_quarantined(stopping))
        box.hold(400, 65936)
        await view.wait_memory_released(baseline)
        assert set(view.quarantined) == {1}
        box.hold(400, 500)
        await view.gpu_released.wait()
        assert dict(view.quarantined) == {}
        stopping.set()


async def test_a_gpu_that_no_longer_answers_stays_aside(box: Box) -> None:
    view = box.view(SHORT_S)
    baseline = await view.memory_baseline(EngineKind.SGLANG, (0, 1))
    box.hold(400, 65936)
    await view.wait_memory_released(baseline)
    box.hold(400)
    await view.release_recovered()
    assert set(view.quarantined) == {1}


async def test_an_engine_without_gpus_of_this_host_has_no_baseline(box: Box) -> None:
    assert (
        await HostState(state=box.path.parent).memory_baseline(EngineKind.SIMULATED, (0, 1)) == {}
    )
    assert await box.view(SHORT_S).memory_baseline(EngineKind.SGLANG, ()) == {}


def test_whose_a_process_is_comes_from_this_host() -> None:
    mine = classify_holder(GpuProcess(os.getpid(), "python", 100, 0))
    assert mine.standing == "foreign" and mine.owner
    assert classify_holder(GpuProcess(4194003, "", 100, 0, visible=False)).standing == "unseen"
    assert "another container" in str(
        classify_holder(GpuProcess(4194003, "", 100, 0, visible=False))
    )
