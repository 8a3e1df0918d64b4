"""Owns the promises of the telling of our launch from another server that answers in its place."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_agent.engines.sglang.launch_identity import launch_difference

URL = "http://127.0.0.1:31007"
WORDS = (
    "--model-path",
    "m/tiny",
    "--host",
    "127.0.0.1",
    "--port",
    "31007",
    "--tp-size",
    "2",
    "--api-key",
    "sk-1",
    "--json",
    '{"a": 1}',
)
COMMAND = (
    '--model-path m/tiny --host 127.0.0.1 --port 31007 --tp-size 2 --api-key ****** --json {"a": 1}'
)


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"port": 31007, "launch_command": COMMAND},
        {"port": 31007, "launch_command": f"/env/bin/launch_server.py {COMMAND} --numa-node 0 1"},
        {"port": None, "launch_command": None},
    ],
    ids=["an older server says nothing", "0.5.20", "0.5.10, with what a wrapper added", "nothing"],
)
def test_the_launched_server_is_known(info: dict[str, Any]) -> None:
    assert launch_difference(info, URL, WORDS) == ""


@pytest.mark.parametrize(
    ("info", "told"),
    [
        ({"port": 30000}, "it reports port 30000"),
        (
            {"port": 31007, "launch_command": COMMAND.replace("--tp-size 2", "--tp-size 4")},
            "it was launched without the words `2`",
        ),
        (
            {"launch_command": "--model-path m/tiny"},
            "it was launched without the words `--host 127.0.0.1 --port 31007`",
        ),
        (
            {"launch_command": COMMAND.replace("--port 31007", "--port 31008")},
            "it was launched without the words `31007`",
        ),
    ],
)
def test_another_server_of_the_same_model_is_told_by_its_launch(
    info: dict[str, Any], told: str
) -> None:
    assert launch_difference(info, URL, WORDS) == told


def test_what_the_command_never_shows_is_not_missed() -> None:
    passed = ("--config", "/c.yaml", "--model-type", "llm", "--port", "31007")
    assert launch_difference({"launch_command": "--port 31007 --tp-size 2"}, URL, passed) == ""


def test_without_words_only_the_port_tells() -> None:
    assert launch_difference({"port": 31007, "launch_command": "other"}, URL, ()) == ""
