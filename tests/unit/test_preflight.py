"""Owns the promises of the look at a host before a launch: each code, what it does to the trial,
and that it ends no process.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet_agent.app.check_command import check_host
from fleet_agent.core.engine import LaunchPlace
from fleet_agent.host.gpus import RecordedGpus
from fleet_agent.host.host_state import HostState
from fleet_agent.host.model_files import describe_missing
from fleet_agent.server.host_findings import CODES, ERROR, Finding, launch_refusal
from fleet_agent.server.preflight import check_compiler, check_gpus, check_model, preflight
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Container, EngineKind, EngineSpec, Gang, TrialSpec

BOX = Path(__file__).parent / "data" / "host" / "eight-gpus.json"
ALL = tuple(range(8))


def box(
    folder: Path, gpus: Mapping[int, Mapping[str, Any]] | None = None, **changes: Any
) -> HostState:
    """The recorded box with some of its GPUs changed."""
    document = json.loads(BOX.read_text()) | changes
    for index, facts in (gpus or {}).items():
        document["gpus"][index] |= facts
    (folder / "gpus.json").write_text(json.dumps(document))
    return HostState(RecordedGpus(folder / "gpus.json"), folder)


def model(folder: Path, shards: int = 2) -> Path:
    """A small model whose weights are whole."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    names = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    for name in names:
        head = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        (folder / name).write_bytes(struct.pack("<Q", len(head)) + head + bytes(4))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {f"w{name}": name for name in names}})
    )
    return folder


def spec(folder: Path, **changes: Any) -> TrialSpec:
    engine = EngineSpec(
        kind=EngineKind.SGLANG, model_path=str(folder / "model"), python=sys.executable, gpus=8
    )
    return TrialSpec("t", engine=replace(engine, **changes))


async def codes(
    trial: TrialSpec, host: HostState, gpus: tuple[int, ...] = ALL, port: int = 0
) -> list[str]:
    """What is found, without what depends on the machine that runs the tests."""
    found = await preflight(trial, LaunchPlace(port, gpus, host.state, "t/1"), host)
    return [
        finding.code
        for finding in found
        if finding.code not in ("clock_unsynchronised", "clock_jumped", "shm_small", "disk_low")
    ]


async def test_a_healthy_host_and_a_whole_model_have_no_finding(tmp_path: Path) -> None:
    model(tmp_path / "model")
    assert await codes(spec(tmp_path), box(tmp_path)) == []


async def test_a_hub_name_is_looked_up_by_the_server_and_not_here(tmp_path: Path) -> None:
    assert await codes(spec(tmp_path, model_path="org/model"), box(tmp_path)) == []


async def test_a_model_that_is_not_there_must_be_edited_by_the_user(tmp_path: Path) -> None:
    trial, host = spec(tmp_path), box(tmp_path)
    refused = launch_refusal(await preflight(trial, LaunchPlace(0, ALL, tmp_path, "t/1"), host))
    assert refused is not None
    assert (refused.kind, refused.failure_class) == (ErrorKind.CONFIG, "preflight_model_missing")
    assert str(tmp_path / "model") in refused.message and "model.path" in refused.hint


async def test_the_draft_is_looked_for_as_the_model_is(tmp_path: Path) -> None:
    model(tmp_path / "model")
    trial = spec(tmp_path, args={"speculative_draft_model_path": str(tmp_path / "draft")})
    assert await codes(trial, box(tmp_path)) == ["preflight_model_missing"]


def damage_nothing(folder: Path) -> None:
    del folder


def damage_by_loss(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()


def damage_by_cut(folder: Path) -> None:
    path = folder / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def damage_by_pointer(folder: Path) -> None:
    (folder / "model-00001-of-00002.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    )


def damage_by_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def damage_by_no_weights(folder: Path) -> None:
    for file in folder.glob("model*"):
        file.unlink()


DAMAGES = {
    damage_nothing: "", damage_by_loss: "lacks 1 of 2 weight files: model-00002", damage_by_cut: "lacks 1 of 2 weight files: model-00001",
    damage_by_pointer: "lacks 1 of 2 weight files: model-00001", damage_by_no_config: "has no config.json",
    damage_by_no_weights: "has no weights",
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_an_incomplete_model_is_told_by_what_it_lacks(tmp_path: Path, damage: Any) -> None:
    folder = model(tmp_path / "model")
    damage(folder)
    found = describe_missing(folder)
    assert (DAMAGES[damage] in found) if DAMAGES[damage] else found == ""


def test_a_dummy_model_needs_no_weights_and_a_tokeniser_no_configuration(tmp_path: Path) -> None:
    folder = model(tmp_path / "model")
    damage_by_no_weights(folder)
    assert describe_missing(folder, is_dummy=True) == ""
    damage_by_no_config(folder)
    assert describe_missing(folder, is_tokenizer=True) == ""


def test_a_path_in_a_container_is_that_of_its_mount(tmp_path: Path) -> None:
    model(tmp_path / "llama")
    inside = replace(
        spec(tmp_path).engine,
        model_path="/models/llama",
        container=Container("image", mounts={"/models": f"{tmp_path}:ro"}),
    )
    assert list(check_model(inside)) == []
    assert [
        finding.code for finding in check_model(replace(inside, model_path="/models/other"))
    ] == ["preflight_model_missing"]


async def test_a_python_that_is_not_there_is_told(tmp_path: Path) -> None:
    model(tmp_path / "model")
    assert await codes(spec(tmp_path, python=str(tmp_path / "bin/python")), box(tmp_path)) == [
        "preflight_python_missing"
    ]


async def test_a_file_that_a_variable_names_must_be_there(tmp_path: Path) -> None:
    model(tmp_path / "model")
    env = {"NCCL_GRAPH_FILE": str(tmp_path / "graph.xml"), "NCCL_TOPO_FILE": "secret://TOPO"}
    assert await codes(spec(tmp_path, env=env), box(tmp_path)) == ["preflight_file_missing"]
    (tmp_path / "graph.xml").write_text("")
    assert await codes(spec(tmp_path, env=env), box(tmp_path)) == []


async def test_a_port_that_something_listens_on_is_refused_as_a_conflict(tmp_path: Path) -> None:
    model(tmp_path / "model")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert await codes(spec(tmp_path), box(tmp_path), port=port) == ["port_in_use"]
        gang = Gang(2, 0, f"10.0.0.1:{port}")
        assert await codes(spec(tmp_path, gang=gang), box(tmp_path)) == ["dist_port_in_use"]
        assert await codes(spec(tmp_path, gang=replace(gang, rank=1)), box(tmp_path)) == [], (
            "another host listens there"
        )
    assert CODES["port_in_use"].kind is ErrorKind.CONFLICT


LEFTOVER = {"pid": 4194001, "name": "", "used_mib": 66120, "gpu": 2, "visible": False}


async def test_memory_that_others_hold_is_refused_with_their_pids(tmp_path: Path) -> None:
    model(tmp_path / "model")
    host = box(tmp_path, {2: {"memory_used_mib": 66760}}, processes=[LEFTOVER])
    refused = launch_refusal(
        await preflight(spec(tmp_path), LaunchPlace(0, ALL, tmp_path, "t/1"), host)
    )
    assert refused is not None
    assert (refused.kind, refused.failure_class) == (ErrorKind.CONFLICT, "gpu_busy_leftover")
    assert "pid 4194001" in refused.message and "GPU2" in refused.message
    assert "never kill" in refused.hint


async def test_only_the_gpus_of_the_launch_are_judged(tmp_path: Path) -> None:
    model(tmp_path / "model")
    host = box(tmp_path, {2: {"memory_used_mib": 66760}}, processes=[LEFTOVER])
    assert await codes(spec(tmp_path, gpus=4), host, gpus=(4, 5, 6, 7)) == []


async def test_memory_that_is_held_on_all_alike_is_refused_too(tmp_path: Path) -> None:
    model(tmp_path / "model")
    host = box(tmp_path, {index: {"memory_used_mib": 66760} for index in ALL})
    assert await codes(spec(tmp_path), host) == ["gpu_busy_leftover"]


async def test_a_small_process_of_somebody_else_is_only_told(tmp_path: Path) -> None:
    model(tmp_path / "model")
    assert await codes(spec(tmp_path), box(tmp_path, processes=[LEFTOVER | {"used_mib": 300}])) == [
        "gpu_shared"
    ]


@pytest.mark.parametrize(
    ("gpu", "code"),
    [
        ({"fault": "GPU is lost"}, "gpu_lost"),
        ({"fabric": "in progress"}, "fabric_manager_down"),
        ({"mig": True}, "mig_on"),
        ({"pcie_width": 8}, "gpus_unequal"),
        ({"power_limit_w": 500}, "gpus_unequal"),
    ],
)
async def test_the_state_of_each_gpu_is_judged(
    tmp_path: Path, gpu: dict[str, Any], code: str
) -> None:
    assert [
        finding.code
        for finding in check_gpus(await box(tmp_path, {5: gpu}).read_gpus(), ALL)
        if finding.code != "gpus_unequal"
    ] == ([code] if code != "gpus_unequal" else [])
    found = check_gpus(await box(tmp_path, {5: gpu}).read_gpus(), ALL)
    assert any(finding.code == code and "GPU5" in finding.message for finding in found)


async def test_a_driver_that_does_not_answer_is_the_hosts_to_mend(tmp_path: Path) -> None:
    host = box(
        tmp_path,
        gpus={},
        fault="NVML: RM has detected an NVML/RM version mismatch.",
        failure_class="driver_mismatch",
    )
    (finding,) = check_gpus(await host.read_gpus(), ALL)
    assert (finding.code, CODES[finding.code].kind) == ("driver_mismatch", ErrorKind.DEPLOY_FAILED)


async def test_a_gpu_that_is_gone_since_the_agent_started_is_told(tmp_path: Path) -> None:
    (finding,) = check_gpus(await box(tmp_path).read_gpus(), (0, 11))
    assert (finding.code, "GPU11" in finding.message) == ("gpu_lost", True)


async def test_a_simulated_server_needs_no_model_and_an_external_one_no_preflight(
    tmp_path: Path,
) -> None:
    host = box(tmp_path, {2: {"memory_used_mib": 66760}})
    simulated = spec(tmp_path, kind=EngineKind.SIMULATED, python="")
    assert await codes(simulated, host) == ["gpu_busy_leftover"], (
        "its GPUs are recorded, so they count"
    )
    assert await codes(simulated, HostState(state=tmp_path)) == []
    assert await codes(spec(tmp_path, kind=EngineKind.EXTERNAL), host) == []


def test_what_the_user_must_edit_is_told_first() -> None:
    busy, missing = (
        Finding("gpu_busy_leftover", "busy", "wait"),
        Finding("preflight_model_missing", "missing", "edit"),
    )
    refused = launch_refusal([Finding("mig_on", "told"), busy, missing])
    assert refused is not None
    assert (refused.kind, refused.message, refused.hint) == (
        ErrorKind.CONFIG,
        "preflight: missing; busy",
        "edit",
    )
    assert launch_refusal([Finding("mig_on", "told"), Finding("clock_jumped", "told")]) is None


def test_each_error_code_has_a_kind_and_a_class() -> None:
    errors = [code for code in CODES.values() if code.severity == ERROR]
    assert errors and all(code.kind is not ErrorKind.NONE and code.failure_class for code in errors)


def test_the_codes_are_those_of_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "host.md").read_text()
    assert {code for code in CODES if f"`{code}`" not in guide} == set()


def test_a_check_of_the_host_alone_needs_no_trial(tmp_path: Path) -> None:
    found = check_host(box(tmp_path, {1: {"nvlinks": 17}}))
    assert "GPU1 has 17 NVLinks up (others 18)" in [finding.message for finding in found]


def test_a_host_without_a_compiler_is_told_what_its_load_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CC", raising=False)
    assert [finding.code for finding in check_compiler()] == []
    monkeypatch.setenv("PATH", str(tmp_path))
    [finding] = check_compiler()
    assert (finding.code, finding.severity) == ("no_compiler", "info")
    assert "more CPU time" in finding.message
