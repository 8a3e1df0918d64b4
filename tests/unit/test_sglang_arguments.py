"""Owns the promises of SGLang's command line and environment: what a job says is what the process
gets.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet_agent.core.engine import EngineAdapter, LaunchPlace
from fleet_agent.engines.catalogue import ENGINES
from fleet_agent.engines.sglang.launch.argv import expand_home_paths, option_argv, to_argv
from fleet_agent.engines.sglang.launch.launch_environment import server_environment
from fleet_agent.engines.sglang.sglang_engine import SglangEngine
from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import EngineKind, EngineSpec, TrialSpec

PLACE = LaunchPlace(port=31234, gpus=(), folder=Path("/nowhere"), token="job-b1-v0/2")
ENGINE = EngineSpec(
    EngineKind.SGLANG,
    "org/model",
    args={"tp_size": 8},
    env={"NCCL_PROTO": "LL"},
    python="/venv/bin/python",
)
SPEC = TrialSpec(trial_id="job-b1-v0", attempt=2, variant="v", engine=ENGINE)
HOST = {
    "PATH": "/bin", "HOME": "/home/me", "LANG": "de_DE", "TMPDIR": "/scratch",
    "SECRET": "x", "LD_PRELOAD": "x.so", "CUDA_VISIBLE_DEVICES": "7",
}  # fmt: skip


def test_every_kind_of_a_job_has_its_engine() -> None:
    assert set(ENGINES) == set(EngineKind) - {EngineKind.UNSPECIFIED}
    assert {kind for kind, engine in ENGINES.items() if not engine.launches} == {
        EngineKind.EXTERNAL
    }


def test_the_command_is_that_of_the_documentation() -> None:
    engine: EngineAdapter = SglangEngine()
    command = engine.launch_command(SPEC, PLACE)
    assert command.argv == (
        *("/venv/bin/python", "-m", "sglang.launch_server"),
        *(
            "--model-path",
            "org/model",
            "--host",
            "127.0.0.1",
            "--port",
            "31234",
            "--enable-metrics",
            "--tp-size",
            "8",
        ),
    )
    assert command.cwd == "/nowhere"
    assert engine.url(SPEC, PLACE) == "http://127.0.0.1:31234"


def test_metrics_are_on_unless_the_job_turns_them_off() -> None:
    off = replace(SPEC, engine=replace(ENGINE, args={"enable_metrics": False}))
    assert SglangEngine().launch_command(SPEC, PLACE).argv.count("--enable-metrics") == 1
    assert "--enable-metrics" not in SglangEngine().launch_command(off, PLACE).argv


def test_a_home_folder_is_resolved_wherever_a_path_can_stand() -> None:
    args = {"speculative_draft_model_path": "~/draft", "served_model_name": "~/as-written"}
    engine = replace(ENGINE, python="~/venv/bin/python", model_path="~/model", args=args)
    argv = SglangEngine().launch_command(replace(SPEC, engine=engine), PLACE).argv
    home = str(Path.home())
    assert argv[0] == f"{home}/venv/bin/python"
    assert argv[argv.index("--model-path") + 1] == f"{home}/model"
    assert argv[argv.index("--speculative-draft-model-path") + 1] == f"{home}/draft"
    assert argv[argv.index("--served-model-name") + 1] == "~/as-written"


def test_a_path_of_another_users_home_is_left_as_it_is() -> None:
    assert expand_home_paths(
        {"tokenizer_path": "~other/x", "model_path": "/abs", "file_path": None}, "/root"
    ) == {
        "tokenizer_path": "~other/x",
        "model_path": "/abs",
        "file_path": None,
    }


@pytest.mark.parametrize(
    ("engine", "gpus"),
    [
        (replace(ENGINE, args={"port": 1}), ()),
        (replace(ENGINE, args={"host": "0.0.0.0"}), ()),
        (replace(ENGINE, model_path=""), ()),
        (replace(ENGINE, python=""), ()),
        (replace(ENGINE, env={"CUDA_VISIBLE_DEVICES": "0"}), (1,)),
        (replace(ENGINE, env={"CUDA_VISIBLE_DEVICES": "0"}), ()),
    ],
)
def test_what_cannot_be_launched_is_the_users_to_edit(
    engine: EngineSpec, gpus: tuple[int, ...]
) -> None:
    with pytest.raises(ConfigError) as refused:
        SglangEngine().launch_command(replace(SPEC, engine=engine), replace(PLACE, gpus=gpus))
    assert refused.value.hint


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, ("--a-b",)),
        (False, ()),
        (None, ()),
        (0, ("--a-b", "0")),
        (0.5, ("--a-b", "0.5")),
        ("", ("--a-b", "")),
        ("two words", ("--a-b", "two words")),
        ([1, "x"], ("--a-b", "1", "x")),
        ({"k": [1, True]}, ("--a-b", '{"k": [1, true]}')),
    ],
)
def test_an_argument_becomes_its_words(value: object, expected: tuple[str, ...]) -> None:
    assert option_argv("a_b", value) == expected


def test_false_is_said_only_where_sglang_has_a_word_for_it() -> None:
    assert to_argv({"lora_strict_loading": False, "disable_cuda_graph": False}) == (
        "--no-lora-strict-loading",
    )


def test_the_jobs_order_is_kept() -> None:
    assert to_argv({"z": 1, "a": True}) == ("--z", "1", "--a")


def test_of_the_host_only_what_is_listed_reaches_the_server() -> None:
    assert server_environment(HOST, {}, (), "t/1") == {
        "PATH": "/bin", "HOME": "/home/me", "LANG": "de_DE", "TMPDIR": "/scratch", "BENCHFLEET_LAUNCH": "t/1", "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip


def test_the_jobs_environment_wins_over_the_hosts() -> None:
    env = server_environment(HOST, {"PATH": "/opt", "NCCL_PROTO": "LL"}, (), "t/1")
    assert (env["PATH"], env["NCCL_PROTO"]) == ("/opt", "LL")


def test_the_launch_token_and_the_gpus_are_not_the_jobs_to_set() -> None:
    env = server_environment({}, {"BENCHFLEET_LAUNCH": "forged"}, (2, 3), "t/1")
    assert (env["BENCHFLEET_LAUNCH"], env["CUDA_VISIBLE_DEVICES"]) == ("t/1", "2,3")


def test_a_server_without_gpus_sees_none_that_another_trial_may_hold() -> None:
    assert (
        server_environment(HOST, {"CUDA_VISIBLE_DEVICES": "0"}, (), "t/1")["CUDA_VISIBLE_DEVICES"]
        == ""
    )


def test_a_bare_host_still_gives_a_path_and_a_language() -> None:
    assert set(server_environment({}, {}, (), "t/1")) == {
        "PATH",
        "LANG",
        "BENCHFLEET_LAUNCH",
        "CUDA_VISIBLE_DEVICES",
    }
