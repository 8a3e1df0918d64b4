"""Promises of `fleetctl repro`: the script starts exactly the recorded process, and prints no
secret.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_controller.report.repro_script import repro_script
from fleet_protos.errors import ConfigError
from fleet_protos.events import Event, ServerLaunched, TrialOver

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


def script(argv: tuple[str, ...], env: Mapping[str, str]) -> str:
    launched = ServerLaunched(pid=1, url="http://127.0.0.1:30000", argv=argv, env=env)
    return repro_script(
        [Event(body=ServerLaunched(argv=("old",))), Event(body=launched), Event(body=TrialOver())],
        "trial t-b1-v1",
    )


def result(text: str, **env: str) -> tuple[list[str], dict[str, str]]:
    done = subprocess.run(["sh", "-c", text], env=env, capture_output=True, text=True, check=True)
    argv, seen = json.loads(done.stdout)
    return argv, {
        name: value for name, value in seen.items() if name != "LC_CTYPE"
    }  # Python's own, in the C locale


words = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20)


@settings(max_examples=15, deadline=None)
@given(st.lists(words, max_size=4), words)
def test_any_argument_and_variable_arrives_as_it_was(arguments: list[str], value: str) -> None:
    text = script((sys.executable, "-X", "utf8", "-c", SHOW, *arguments), {"NCCL_PROTO": value})
    assert result(text, LOST="1") == (arguments, {"NCCL_PROTO": value})


def test_secrets_are_not_printed_and_come_from_the_shell() -> None:
    env = {
        "HF_TOKEN": "hf_abc",
        "AWS_SECRET_ACCESS_KEY": "wxyz",
        "TOKENIZERS_PARALLELISM": "false",
        "db_password": "pw123",
    }
    text = script(
        (
            sys.executable,
            "-c",
            SHOW,
            "--api-key",
            "sk-1",
            "--admin-api-key=sk-2",
            "--max-total-tokens",
            "9",
        ),
        env,
    )
    assert not any(secret in text for secret in ("hf_abc", "wxyz", "pw123", "sk-1", "sk-2"))
    given_now = {"HF_TOKEN": "a", "AWS_SECRET_ACCESS_KEY": "b", "db_password": "c", "API_KEY": "d"}
    argv, seen = result(text, **given_now)
    assert argv == ["--api-key", "d", "--admin-api-key=d", "--max-total-tokens", "9"]
    assert seen == {
        "TOKENIZERS_PARALLELISM": "false",
        "HF_TOKEN": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "db_password": "c",
    }


def test_missing_secret_stops_the_script_with_its_name() -> None:
    done = subprocess.run(
        ["sh", "-c", script(("true",), {"HF_TOKEN": "x"})],
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "HF_TOKEN" in done.stderr


def test_server_started_by_hand_does_not_carry_the_agents_mark() -> None:
    assert "BENCHFLEET_LAUNCH" not in script(("true",), {"BENCHFLEET_LAUNCH": "abc"})


def test_trial_that_launched_nothing_is_told() -> None:
    with pytest.raises(ConfigError, match="launched no server"):
        repro_script([Event(body=TrialOver())], "trial t-b1-v1")


def test_line_ends_in_names_stay_inside_the_comment() -> None:
    text = repro_script(
        [Event(body=ServerLaunched(argv=("true",), url="u\nrm -rf /"))], "trial\ntouch x"
    )
    assert not any(line.startswith(("rm", "touch")) for line in text.splitlines())


def test_a_secret_of_the_host_is_read_from_its_file_and_not_printed(tmp_path: Path) -> None:
    env = {
        "HF_TOKEN": "secret://hub",
        "AGAIN": "secret://hub",
        "OTHER": "secret://other",
        "PLAIN": "a",
    }
    (tmp_path / "secrets").write_text(
        '# tokens\nhub2=no\nhub=of the "host" $HOME\nother=12345678\n'
    )
    text = script((sys.executable, "-c", SHOW), env)
    _, seen = result(text, BENCHFLEET_SECRETS=str(tmp_path / "secrets"))
    assert seen == {
        "HF_TOKEN": 'of the "host" $HOME',
        "AGAIN": 'of the "host" $HOME',
        "OTHER": "12345678",
        "PLAIN": "a",
    }
    _, seen = result(text, BENCHFLEET_SECRETS=str(tmp_path / "secrets"), other="of the shell")
    assert seen["OTHER"] == "of the shell"


def test_a_secret_that_the_file_lacks_stops_the_script_and_names_both(tmp_path: Path) -> None:
    (tmp_path / "secrets").touch()
    command = ["sh", "-c", script(("true",), {"HF_TOKEN": "secret://hub"})]
    done = subprocess.run(
        command,
        env={"BENCHFLEET_SECRETS": str(tmp_path / "secrets")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert f"no line hub=… in {tmp_path}/secrets" in done.stderr


def test_the_port_and_the_place_to_meet_can_be_chosen() -> None:
    words = ("--port", "30000", "--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "h0:20000")
    text = script((sys.executable, "-c", SHOW, *words), {})
    assert "rank 1" in text
    assert result(text)[0] == list(words)
    assert result(text, PORT="31000", DIST_INIT_ADDR="h9:1")[0] == [
        "--port",
        "31000",
        *words[2:7],
        "h9:1",
    ]


RUNTIME = """#!/bin/sh
for word; do echo "word $word"; done
cat
"""


def test_a_container_is_started_by_the_same_words_without_the_agents_marks(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text(RUNTIME)
    docker.chmod(0o755)
    marks = (
        "--name",
        "benchfleet-t",
        "--label",
        "benchfleet.launch=t/1",
        "--cidfile",
        "/trial/docker.cid",
    )
    inside = ("image:1", "-m", "sglang.launch_server", "--port", "30000", "--name", "kept")
    before, after = (
        ("run", "--rm"),
        ("--gpus", '"device=0,1"', "--env-file", "/trial/container.env", "--entrypoint", "python3"),
    )
    argv = (str(docker), *before, *marks, *after, *inside)
    env = {
        "A": "$HOME `x` \\ 'q' \"d\"",
        "HF_TOKEN": "secret://hub",
        "API_KEY": "sk-in-the-job",
        "BENCHFLEET_LAUNCH": "t/1",
    }
    text = script(argv, env)
    assert "sk-in-the-job" not in text
    shell = {
        "hub": "hf_$value`s`",
        "API_KEY": "k",
        "PORT": "31000",
        "HOME": "/h",
        "PATH": os.defpath,
    }
    done = subprocess.run(["sh", "-c", text], env=shell, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    words = [line.removeprefix("word ") for line in lines if line.startswith("word ")]
    assert words == [
        *before,
        *after[:3],
        "/dev/stdin",
        *after[4:],
        *inside[:4],
        "31000",
        *inside[5:],
    ]
    assert lines[len(words) :] == [f"A={env['A']}", "HF_TOKEN=hf_$value`s`", "API_KEY=k"]


HOSTILE_NAMES = [
    'A"; touch x; "',
    "A\ntouch x",
    "A=$(touch x)",
    "TOKEN\ntouch x\n#",
    "a b",
    "",
    "`x`",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
@pytest.mark.parametrize("value", ["x", "secret://HF_TOKEN"])
@pytest.mark.parametrize("argv", [("true",), ("docker", "run", "--env-file", "/x", "image")])
def test_a_host_that_lies_about_its_variables_gets_no_line_into_the_script(
    name: str, value: str, argv: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match="not a valid name"):
        script(argv, {name: value})


def test_a_value_that_would_end_the_variables_of_a_container_is_not_written() -> None:
    with pytest.raises(ConfigError, match="line end"):
        script(
            ("docker", "run", "--env-file", "/x", "image"), {"A": "1\nEND_OF_VARIABLES\ntouch x"}
        )
