"""Owns the promises of the simulated engine's adapter: its command and environment."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fleet_agent.core.engine import EngineAdapter, LaunchPlace
from fleet_agent.engines.simulated.simulated_engine import SimulatedEngine
from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import EngineKind, EngineSpec, Simulation, TrialSpec

PLACE = LaunchPlace(port=31234, gpus=(), folder=Path("/nowhere"), token="job-b1-v0/2")
ENGINE = EngineSpec(
    EngineKind.SIMULATED,
    "demo/model",
    args={
        "tp_size": 8,
        "trust_remote_code": True,
        "disable_cuda_graph": False,
        "cuda_graph_bs": [1, 2],
    },
    env={"NCCL_PROTO": "LL"},
    simulation=Simulation(time_scale=20.0, lost_env=("NCCL_PROTO",)),
)
SPEC = TrialSpec(trial_id="job-b1-v0", attempt=2, variant="v", engine=ENGINE)


def test_it_is_an_engine() -> None:
    engine: EngineAdapter = SimulatedEngine()
    assert engine.launches
    assert engine.url(SPEC, PLACE) == "http://127.0.0.1:31234"


def test_the_command_carries_arguments_port_and_knobs() -> None:
    argv = SimulatedEngine().launch_command(SPEC, PLACE).argv
    assert argv[1:3] == ("-m", "fleet_simulator.server")
    assert argv[3:9] == ("--model-path", "demo/model", "--host", "127.0.0.1", "--port", "31234")
    assert argv[9:-2] == ("--tp-size", "8", "--trust-remote-code", "--cuda-graph-bs", "1", "2")
    knobs = json.loads(argv[-1])
    assert (argv[-2], knobs["time_scale"], knobs["lost_env"], knobs["launch"]) == (
        "--simulation",
        20.0,
        ["NCCL_PROTO"],
        "job-b1-v0/2",
    )


def test_the_environment_is_the_base_the_job_and_the_launch_alone() -> None:
    env = SimulatedEngine().launch_command(SPEC, PLACE).env
    assert env == {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "NCCL_PROTO": "LL",
        "BENCHFLEET_LAUNCH": "job-b1-v0/2",
    }


@pytest.mark.parametrize(
    "engine", [replace(ENGINE, args={"port": 1}), replace(ENGINE, model_path="")]
)
def test_what_cannot_be_launched_is_the_users_to_edit(engine: EngineSpec) -> None:
    with pytest.raises(ConfigError) as refused:
        SimulatedEngine().launch_command(replace(SPEC, engine=engine), PLACE)
    assert refused.value.hint
