"""Promises of `fleetctl repro`: the script starts exactly the recorded process, and prints no secret."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_controller.report.repro import repro_script
from fleet_protos.errors import ConfigError
from fleet_protos.events import Event, ServerLaunched, TrialOver

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


def script(argv: tuple[str, ...], env: Mapping[str, str]) -> str:
    launched = ServerLaunched(pid=1, url="http://127.0.0.1:30000", argv=argv, env=env)
    return repro_script([Event(body=ServerLaunched(argv=("old",))), Event(body=launched), Event(body=TrialOver())], "trial t-b1-v1")


def result(text: str, **env: str) -> tuple[list[str], dict[str, str]]:
    done = subprocess.run(["sh", "-c", text], env=env, capture_output=True, text=True, check=True)
    argv, seen = json.loads(done.stdout)
    return argv, {name: value for name, value in seen.items() if name != "LC_CTYPE"}  # Python's own, in the C locale


words = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20)


@settings(max_examples=15, deadline=None)
@given(st.lists(words, max_size=4), words)
def test_any_argument_and_variable_arrives_as_it_was(arguments: list[str], value: str) -> None:
    text = script((sys.executable, "-X", "utf8", "-c", SHOW, *arguments), {"NCCL_PROTO": value})
    assert result(text, LOST="1") == (arguments, {"NCCL_PROTO": value})


def test_secrets_are_not_printed_and_come_from_the_shell() -> None:
    env = {"HF_TOKEN": "hf_abc", "AWS_SECRET_ACCESS_KEY": "wxyz", "TOKENIZERS_PARALLELISM": "false", "db_password": "pw123"}
    text = script((sys.executable, "-c", SHOW, "--api-key", "sk-1", "--admin-api-key=sk-2", "--max-total-tokens", "9"), env)
    assert not any(secret in text for secret in ("hf_abc", "wxyz", "pw123", "sk-1", "sk-2"))
    given_now = {"HF_TOKEN": "a", "AWS_SECRET_ACCESS_KEY": "b", "db_password": "c", "API_KEY": "d"}
    argv, seen = result(text, **given_now)
    assert argv == ["--api-key", "d", "--admin-api-key=d", "--max-total-tokens", "9"]
    assert seen == {"TOKENIZERS_PARALLELISM": "false", "HF_TOKEN": "a", "AWS_SECRET_ACCESS_KEY": "b", "db_password": "c"}


def test_missing_secret_stops_the_script_with_its_name() -> None:
    done = subprocess.run(["sh", "-c", script(("true",), {"HF_TOKEN": "x"})], env={}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "HF_TOKEN" in done.stderr


def test_server_started_by_hand_does_not_carry_the_agents_mark() -> None:
    assert "BENCHFLEET_LAUNCH" not in script(("true",), {"BENCHFLEET_LAUNCH": "abc"})


def test_trial_that_launched_nothing_is_told() -> None:
    with pytest.raises(ConfigError, match="launched no server"):
        repro_script([Event(body=TrialOver())], "trial t-b1-v1")


def test_line_ends_in_names_stay_inside_the_comment() -> None:
    text = repro_script([Event(body=ServerLaunched(argv=("true",), url="u\nrm -rf /"))], "trial\ntouch x")
    assert not any(line.startswith(("rm", "touch")) for line in text.splitlines())
