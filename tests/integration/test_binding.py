"""The promise of CPU binding, on real processes: what a job asks is what the kernel says of the
server.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fleet_agent.core.engine import LaunchPlace
from fleet_agent.engines.catalogue import ENGINES
from fleet_agent.engines.sglang.launch.cpu_binding import format_cpu_list
from fleet_agent.host.processes import read_stat
from fleet_agent.server.supervisor import Supervisor
from fleet_protos.trial_types import EngineKind, EngineSpec, TrialSpec

PYTHON = f"""#!/bin/sh
shift 2
exec {sys.executable} -m fleet_simulator.server "$@"
"""


def allowed(pid: int) -> str:
    """The CPUs that a process may use, as the kernel writes them."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list:"))


async def cpus_of_server(kind: EngineKind, folder: Path, asked: str) -> str:
    """What a server that was launched with this binding may use."""
    python = folder / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    engine = EngineSpec(kind, str(folder), python=str(python), cpu_binding=asked)
    place = LaunchPlace(port=0, gpus=(), folder=folder, token=f"{folder.name}/1")
    command = ENGINES[kind].launch_command(TrialSpec(trial_id=folder.name, engine=engine), place)
    supervisor, log = Supervisor(), folder / "server.log"
    server = await supervisor.launch(command, log)
    try:
        while (now := read_stat(server.pid)) and now.name == "taskset":
            pass  # for a moment: it binds itself and becomes the server
        return allowed(server.pid)
    finally:
        stopped = await supervisor.stop(server.session, 10.0)
        assert stopped.left_over == ()


@pytest.mark.parametrize("kind", [EngineKind.SGLANG, EngineKind.SIMULATED])
async def test_a_list_binds_the_server_to_its_cpus(kind: EngineKind, tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    assert await cpus_of_server(kind, tmp_path, str(last)) == str(last)


@pytest.mark.parametrize("asked", ["", "none", "auto"])
async def test_without_a_list_a_server_without_gpus_keeps_all_cpus(
    asked: str, tmp_path: Path
) -> None:
    assert await cpus_of_server(EngineKind.SGLANG, tmp_path, asked) == format_cpu_list(
        os.sched_getaffinity(0)
    )
