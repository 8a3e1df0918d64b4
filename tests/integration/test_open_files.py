"""An agent that may open few files takes no trial that it could not launch, and says why."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet_agent.app.bootstrap import build_agent
from fleet_agent.app.config import AgentConfig
from fleet_agent.engines.catalogue import ENGINES
from fleet_agent.load.load_process import LoadProcess
from fleet_agent.server.ports import Ports
from fleet_agent.server.supervisor import Supervisor
from fleet_agent.server.trial_server import TrialServer, TrialTools
from fleet_controller.core.quarantine import LIKELY_HOST_FAULT
from fleet_protos import events as ev
from fleet_protos.errors import Conflict
from fleet_protos.trial_types import EngineKind, EngineSpec, Measure, TrialSpec

SPEC = TrialSpec(
    "t-b1-v1", 1, "t", "t", "v", block=1, host="here",
    engine=EngineSpec(EngineKind.SIMULATED, "sim/model", gpus=1), measure=Measure(1, 1),
)  # fmt: skip


@contextmanager
def files_left(count: int) -> Iterator[None]:
    """This process may open `count` more files while inside."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    holes = [os.open(os.devnull, os.O_RDONLY) for _ in range(highest)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(holes) + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for hole in holes:
            os.close(hole)


async def test_an_agent_with_few_files_left_takes_no_trials_and_says_so(tmp_path: Path) -> None:
    parts = await build_agent(AgentConfig(host="here", state=tmp_path, gpus=0, simulated_gpus=8))
    try:
        assert parts.agent.takes_no_trials == ""
        with files_left(20), pytest.raises(Conflict, match="files open of the") as refused:
            parts.agent.start(SPEC)
        assert "raise LimitNOFILE=" in refused.value.hint
    finally:
        await parts.server.stop(grace=None)
        parts.journal.close()


async def test_a_launch_without_a_file_left_names_the_cause_and_counts_against_the_host(
    tmp_path: Path,
) -> None:
    server = TrialServer(
        SPEC, TrialTools(Supervisor(), LoadProcess(), Ports(), ENGINES), (), tmp_path
    )
    await asyncio.to_thread(os.getpid)  # the thread and its files are there already
    with files_left(0):
        failed = await server.launch(lambda _: None)
    assert isinstance(failed, ev.ServerFailed)
    assert failed.failure_class == "agent_out_of_files"
    assert "Too many open files" in failed.message
    assert failed.failure_class in LIKELY_HOST_FAULT
