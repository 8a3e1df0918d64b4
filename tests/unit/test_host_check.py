"""The look at a host that no trial asked for: what it tells, and what it leaves alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet_agent.core.admission.host_policy import Policy, ServerDefaults
from fleet_agent.host.gpus import RecordedGpus
from fleet_agent.host.host_state import HostState
from fleet_agent.server.host_check import AgentActivity, inspect_host
from fleet_agent.server.host_findings import CODES

GPU = {"name": "NVIDIA H200", "memory_mib": 143771, "memory_used_mib": 4, "fabric": "completed"}


def view(
    folder: Path, *gpus: dict[str, Any], processes: tuple[dict[str, Any], ...] = ()
) -> HostState:
    document = {
        "gpus": [{"index": index, **GPU, **gpu} for index, gpu in enumerate(gpus)],
        "processes": list(processes),
    }
    (folder / "gpus.json").write_text(json.dumps(document))
    return HostState(RecordedGpus(folder / "gpus.json"), folder)


async def codes(
    host: HostState,
    work: AgentActivity,
    policy: Policy | None = None,
    defaults: ServerDefaults | None = None,
) -> dict[str, str]:
    """Code → message, without what this machine itself adds."""
    found = await inspect_host(host, work, policy or Policy(), defaults or ServerDefaults())
    assert all(finding.code in CODES for finding in found)
    of_this_machine = {
        "host_busy",
        "limit_files",
        "limit_processes",
        "limit_memlock",
        "clock_unsynchronised",
        "disk_low",
        "shm_small",
    }
    return {
        finding.code: finding.message for finding in found if finding.code not in of_this_machine
    }


async def test_a_host_without_gpus_and_work_has_nothing_to_tell(tmp_path: Path) -> None:
    assert await codes(view(tmp_path), AgentActivity()) == {}


async def test_a_trial_that_runs_is_told_and_its_memory_is_not_judged(tmp_path: Path) -> None:
    busy = {"memory_used_mib": 120_000}
    host = view(
        tmp_path, busy, {}, processes=({"pid": 1, "gpu": 0, "used_mib": 120_000, "name": "python"},)
    )
    assert "gpu_busy_leftover" in await codes(host, AgentActivity(gpus=(0, 1)))
    assert await codes(host, AgentActivity(("t/1",), gpus=(0, 1), gpus_in_use=(0,))) == {
        "trial_running": "these trials run on this host and were not disturbed: t/1; the memory of GPU 0 is not judged"
    }


async def test_memory_of_other_gpus_is_judged_while_a_trial_runs(tmp_path: Path) -> None:
    host = view(tmp_path, {}, {"memory_used_mib": 90_000})
    assert "gpu_busy_leftover" in await codes(
        host, AgentActivity(("t/1",), gpus=(0, 1), gpus_in_use=(0,))
    )


async def test_gpus_that_are_gone_broken_or_out_of_the_fabric_are_errors(tmp_path: Path) -> None:
    assert "gpu_lost" in await codes(view(tmp_path, {}), AgentActivity(gpus=(0, 1)))
    assert "fabric_manager_down" in await codes(
        view(tmp_path, {"fabric": "in progress"}, {}), AgentActivity(gpus=(0, 1))
    )
    assert all(CODES[code].severity == "error" for code in ("gpu_lost", "fabric_manager_down"))


async def test_why_the_agent_takes_no_trials_is_told(tmp_path: Path) -> None:
    assert await codes(view(tmp_path), AgentActivity(takes_no_trials="the disk is full")) == {
        "takes_no_trials": "the disk is full"
    }


@pytest.mark.parametrize("where", ["default", "configured"])
async def test_a_python_that_is_not_there_is_told(tmp_path: Path, where: str) -> None:
    gone = f"{tmp_path}/gone/python3"
    policy = Policy(python=(gone, f"{tmp_path}/*/python")) if where == "configured" else Policy()
    found = await codes(
        view(tmp_path, {}),
        AgentActivity(gpus=(0,)),
        policy,
        ServerDefaults(python=gone if where == "default" else ""),
    )
    assert found["server_python_missing"].startswith(gone)


@pytest.mark.parametrize(("version", "told"), [("0.5.1.post3", True), ("0.5.3", False)])
async def test_a_sglang_that_takes_a_key_only_on_its_command_line_is_told(
    tmp_path: Path, version: str, told: bool
) -> None:
    python = tmp_path / "env/bin/python3"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/true")
    (tmp_path / f"env/lib/python3.11/site-packages/sglang-{version}.dist-info").mkdir(parents=True)
    found = await codes(
        view(tmp_path, {}), AgentActivity(gpus=(0,)), Policy(), ServerDefaults(python=str(python))
    )
    assert ("server_without_key" in found) == told
    if told:
        assert (
            f"SGLang {version} of {python} takes an API key only on its command line"
            in (found["server_without_key"])
        )


async def test_an_image_that_is_not_there_is_told_and_a_pattern_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = tmp_path / "docker"
    runtime.write_text('#!/bin/sh\n[ "$4" = here:1 ]\n')
    runtime.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = await codes(
        view(tmp_path), AgentActivity(), Policy(images=("here:1", "gone:1", "any/*"))
    )
    assert found == {"image_missing": "image gone:1 is not on this host"}
    runtime.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no_runtime" in await codes(view(tmp_path), AgentActivity(), Policy(images=("here:1",)))
