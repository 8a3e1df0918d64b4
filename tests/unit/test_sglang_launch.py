"""Promises of a launch's command: facts of a host in, words out. Each case is a file of
tests/unit/data/launch.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from fleet_agent.core.engine import LaunchCommand, LaunchPlace
from fleet_agent.engines.sglang.launch.container_command import ContainerRuntime, container_name
from fleet_agent.engines.sglang.launch.cpu_binding import HostCpus, format_cpu_list, parse_cpu_list
from fleet_agent.engines.sglang.launch.host_cpus import read_host_cpus
from fleet_agent.engines.sglang.launch.server_command import HostFacts, server_command
from fleet_knowledge.release import Release
from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import Container, EngineKind, EngineSpec, Gang, TrialSpec

CASES = sorted((Path(__file__).parent / "data/launch").glob("*.json"))
TOKEN, PORT = "job-b1-v1/2", 31234


def engine_of(written: dict[str, Any]) -> EngineSpec:
    nested = {"container": Container, "gang": Gang}
    return EngineSpec(
        EngineKind.SGLANG,
        **{key: nested[key](**value) if key in nested else value for key, value in written.items()},
    )


def facts_of(written: dict[str, Any]) -> HostFacts:
    cpus = written.get("cpus", {})
    return HostFacts(
        home="/home/USER",
        environment={
            "PATH": "/usr/bin:/bin",
            "HOME": "/home/USER",
            "HF_TOKEN": "of the agent's shell",
        },
        cpus=HostCpus(
            {int(node): parse_cpu_list(text) for node, text in cpus.get("nodes", {}).items()},
            parse_cpu_list(cpus.get("allowed", "")),
            {int(gpu): node for gpu, node in cpus.get("gpus", {}).items()},
            cpus.get("programs", {}),
        ),
        runtime=ContainerRuntime(**written["runtime"]) if "runtime" in written else None,
        client_environment={"PATH": "/usr/bin:/bin", "DOCKER_HOST": "unix:///run/x.sock"},
        has_hub=written.get("has_hub", False),
        serve_program=written.get("serve_program", ""),
        sglang=Release.parse(written.get("sglang", "")),
    )


def launch(case: dict[str, Any]) -> LaunchCommand:
    place = LaunchPlace(PORT, tuple(case["gpus"]), Path("/trial/server"), TOKEN)
    spec = TrialSpec(trial_id="job-b1-v1", attempt=2, variant="v", engine=engine_of(case["engine"]))
    return server_command(spec, place, facts_of(case.get("host", {})))


def expected_words(case: dict[str, Any]) -> tuple[str, ...]:
    of_token, of_launch = (
        hashlib.sha256(text.encode()).hexdigest()[:8] for text in (TOKEN, f"{TOKEN} {PORT}")
    )
    return tuple(
        shlex.split(case["argv"].replace("@DIGEST@", of_token).replace("@LAUNCH@", of_launch))
    )


def load(file: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return case


@pytest.mark.parametrize(
    "case", [load(file) for file in CASES if "argv" in load(file)], ids=lambda case: case["about"]
)
def test_the_command_is_the_one_written_down(case: dict[str, Any]) -> None:
    command = launch(case)
    assert command.argv == expected_words(case)
    assert case.get("env", command.env) == command.env


@pytest.mark.parametrize(
    "case", [load(file) for file in CASES if "error" in load(file)], ids=lambda case: case["about"]
)
def test_what_this_host_cannot_launch_is_refused_with_what_to_do(case: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        launch(case)
    told = f"{refused.value.message} {refused.value.hint}"
    assert refused.value.hint
    assert [word for word in case["error"] if word not in told] == []


@pytest.mark.parametrize(
    "case",
    [load(file) for file in CASES if "docker" in file.name and "argv" in load(file)],
    ids=str,
)
def test_no_variable_of_a_container_is_on_its_command_line(case: dict[str, Any]) -> None:
    command = launch(case)
    assert not any(f"{name}=" in word for name in command.env for word in command.argv)
    assert command.env_file in command.argv


@pytest.mark.parametrize(
    ("sglang", "engine", "gets_key"),
    [
        ("0.5.3", {}, True),
        ("0.5.23", {}, True),
        ("0.5.1.post3", {}, False),
        ("", {}, False),
        ("0.5.23", {"args": {"config": "/mine.yaml"}}, False),
        ("0.5.23", {"args": {"tokenizer_worker_num": 4}}, False),
        ("0.5.23", {"args": {"grpc_port": 5}}, False),
        ("0.5.23", {"env": {"SGLANG_GRPC_PORT": "5"}}, False),
        ("0.5.23", {"gang": {"nodes": 2, "rank": 0, "init_address": "a:5"}}, True),
        ("0.5.23", {"gang": {"nodes": 2, "rank": 1, "init_address": "a:5"}}, False),
        ("0.5.23", {"container": {"image": "i"}}, False),
    ],
)
def test_a_server_gets_an_api_key_where_its_version_reads_one_from_a_file(
    sglang: str, engine: dict[str, Any], gets_key: bool
) -> None:
    written = {"model_path": "/m", "python": "/env/bin/python3"} | engine
    if "container" in engine:
        del written["python"]
    runtime = {"kind": "docker", "program": "/usr/bin/docker"}
    command = launch(
        {"engine": written, "gpus": [], "host": {"sglang": sglang, "runtime": runtime}}
    )
    assert command.key_file == ("/trial/server/api-key.yaml" if gets_key else "")
    assert not any("key" in word for word in command.argv)


def test_the_runtime_itself_gets_none_of_the_servers_variables_but_the_mark() -> None:
    command = launch(load(Path(__file__).parent / "data/launch/docker-hub-name.json"))
    assert command.client_env == {
        "PATH": "/usr/bin:/bin",
        "DOCKER_HOST": "unix:///run/x.sock",
        "BENCHFLEET_LAUNCH": TOKEN,
    }
    assert "of the agent's shell" not in command.env.values()


def test_two_tokens_never_share_the_name_of_a_container() -> None:
    names = {
        container_name(token) for token in ("a/1", "a-1", "a 1", "a" * 300 + "/1", "a" * 300 + "/2")
    }
    assert len(names) == 5
    assert all(len(name) <= 100 for name in names)


LISTS: dict[str, set[int]] = {
    "0-3,8": {0, 1, 2, 3, 8},
    "7": {7},
    "0-1, 4": {0, 1, 4},
    "": set(),
    "3-1": set(),
    "0-": set(),
    "x": set(),
}


@pytest.mark.parametrize(("text", "cpus"), LISTS.items())
def test_a_list_of_cpus_is_read_or_is_none(text: str, cpus: set[int]) -> None:
    assert parse_cpu_list(text) == cpus


def test_a_list_of_cpus_is_written_as_short_as_the_kernel_does() -> None:
    assert format_cpu_list({8, 0, 1, 2, 5}) == "0-2,5,8"


def test_gpus_are_counted_by_their_place_on_the_bus_and_other_devices_are_none(
    tmp_path: Path,
) -> None:
    devices = {
        "0000:c1:00.0": ("0x10de", "0x030200", "1"),
        "0000:1b:00.0": ("0x10de", "0x030200", "0"),
        "0000:1b:00.1": ("0x10de", "0x040300", "0"),
        "0000:05:00.0": ("0x1a03", "0x030000", "0"),
        "10000:01:00.0": ("0x10de", "0x030000", "-1"),
    }
    for address, content in devices.items():
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, text in zip(("vendor", "class", "numa_node"), content, strict=True):
            (folder / name).write_text(f"{text}\n")
    for node, text in (("node0", "0-1"), ("node1", "2-3")):
        (tmp_path / "devices/system/node" / node).mkdir(parents=True)
        (tmp_path / "devices/system/node" / node / "cpulist").write_text(f"{text}\n")
    read = read_host_cpus(tmp_path)
    assert read.node_of_gpu == {0: 0, 1: 1}
    assert read.nodes == {0: {0, 1}, 1: {2, 3}}


def test_a_host_that_shows_nothing_binds_nothing(tmp_path: Path) -> None:
    read = read_host_cpus(tmp_path)
    assert (read.node_of_gpu, read.nodes) == ({}, {})
