"""Owns the promises of the simulated engine's adapter: its command, and what it makes of a server's own words."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fleet_agent.engines.engine import Engine, Place
from fleet_agent.engines.simulated.engine import SimulatedEngine, option
from fleet_agent.engines.simulated.proof import argument_gates, environment_gates, explain, nccl_version
from fleet_protos.errors import ConfigError
from fleet_protos.trial import EngineKind, EngineSpec, Gate, GateEffect, Simulation, TrialSpec

PLACE = Place(port=31234, gpus=(), folder=Path("/nowhere"), token="job-b1-v0/2")
ENGINE = EngineSpec(
    EngineKind.SIMULATED,
    "demo/model",
    args={"tp_size": 8, "trust_remote_code": True, "disable_cuda_graph": False, "cuda_graph_bs": [1, 2]},
    env={"NCCL_PROTO": "LL"},
    simulation=Simulation(time_scale=20.0, lost_env=("NCCL_PROTO",)),
)
SPEC = TrialSpec(trial_id="job-b1-v0", attempt=2, variant="v", engine=ENGINE)
LOG = "h:1:1 [0] NCCL INFO NCCL_PROTO set by environment to LL.\nh:1:1 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 16777216.\n"



def short(found: tuple[Gate, ...]) -> list[tuple[str, GateEffect]]:
    return [(gate.code, gate.effect) for gate in found]


def test_it_is_an_engine() -> None:
    engine: Engine = SimulatedEngine()
    assert engine.launches
    assert engine.url(SPEC, PLACE) == "http://127.0.0.1:31234"


def test_the_command_carries_arguments_port_and_knobs() -> None:
    argv = SimulatedEngine().command(SPEC, PLACE).argv
    assert argv[1:3] == ("-m", "fleet_agent.engines.simulated.server")
    assert argv[3:9] == ("--model-path", "demo/model", "--host", "127.0.0.1", "--port", "31234")
    assert argv[9:-2] == ("--tp-size", "8", "--trust-remote-code", "--cuda-graph-bs", "1", "2")
    knobs = json.loads(argv[-1])
    assert (argv[-2], knobs["time_scale"], knobs["lost_env"], knobs["launch"]) == ("--simulation", 20.0, ["NCCL_PROTO"], "job-b1-v0/2")


def test_the_environment_is_the_base_the_job_and_the_launch_alone() -> None:
    env = SimulatedEngine().command(SPEC, PLACE).env
    assert env == {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "NCCL_PROTO": "LL", "BENCHFLEET_LAUNCH": "job-b1-v0/2"}


@pytest.mark.parametrize("engine", [replace(ENGINE, args={"port": 1}), replace(ENGINE, model_path="")])
def test_what_cannot_be_launched_is_the_users_to_edit(engine: EngineSpec) -> None:
    with pytest.raises(ConfigError) as refused:
        SimulatedEngine().command(replace(SPEC, engine=engine), PLACE)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ("--a-b",)),
        (False, ()),
        (None, ()),
        (0.5, ("--a-b", "0.5")),
        ([1, "x"], ("--a-b", "1", "x")),
        ({"k": 1}, ("--a-b", '{"k": 1}')),
    ],
)
def test_an_argument_becomes_its_words(value: object, words: tuple[str, ...]) -> None:
    assert option("a_b", value) == words


def test_arguments_in_effect_as_asked_trip_no_gate() -> None:
    asked = {"tp_size": 8, "mem_fraction_static": "0.9", "trust_remote_code": True, "bs": [1, 2], "off": False}
    assert argument_gates(asked, {"tp_size": 8, "mem_fraction_static": 0.9, "trust_remote_code": True, "bs": [1, 2]}) == ()


def test_a_change_that_sglang_is_known_to_make_is_flagged() -> None:
    asked = {"speculative_algorithm": "NEXTN", "speculative_num_draft_tokens": 16}
    shown = {"speculative_algorithm": "EAGLE", "speculative_num_steps": 5, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 6}
    assert short(argument_gates(asked, shown)) == [("args_changed_by_server", GateEffect.FLAG)] * 2


def test_any_other_change_voids_the_trial() -> None:
    assert short(argument_gates({"tp_size": 8}, {"tp_size": 4})) == [("args_changed_by_server", GateEffect.VOID_TRIAL)]


def test_an_argument_that_is_not_shown_is_flagged() -> None:
    assert short(argument_gates({"new_thing": 8}, {})) == [("args_not_shown_by_server", GateEffect.FLAG)]


@pytest.mark.parametrize(
    ("env", "void"),
    [
        ({"NCCL_PROTO": "LL", "NCCL_BUFFSIZE": "16777216", "OTHER": "x", "NCCL_DEBUG": "INFO"}, 0),
        ({"NCCL_PROTO": "Simple"}, 1),
        ({"NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS"}, 2),
    ],
)
def test_a_variable_that_nccl_does_not_name_voids_the_trial(env: dict[str, str], void: int) -> None:
    assert short(environment_gates(env, LOG)) == [("env_not_effective", GateEffect.VOID_TRIAL)] * void


def test_a_log_without_nccl_lines_proves_nothing_either_way() -> None:
    assert environment_gates({"NCCL_ALGO": "Ring"}, "no such line") == ()


def test_the_loaded_nccl_is_read_from_its_own_line() -> None:
    assert nccl_version("x\nNCCL version 2.27.5+cuda12.9\n") == {"nccl": "2.27.5+cuda12.9"}


@pytest.mark.parametrize(
    ("log", "exit_code", "failure_class"),
    [
        ("ERROR:    [Errno 98] address already in use", 1, "port_in_use"),
        ("server.py: error: unrecognized arguments: x", 2, "argument_error"),
        ("ready to roll", -9, "killed"),
        ("", 3, "unknown"),
    ],
)
def test_a_death_is_explained_from_the_log(log: str, exit_code: int, failure_class: str) -> None:
    assert explain(log, exit_code)[0] == failure_class
