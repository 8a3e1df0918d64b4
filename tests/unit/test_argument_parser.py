"""Promises of the command line itself."""

from __future__ import annotations

import argparse
from importlib import import_module

import pytest

from fleet_controller.cli.argument_parser import COMMANDS, build_parser
from fleet_controller.cli.verdict_options import percentage


@pytest.mark.parametrize("command", [name for name, _, _ in COMMANDS])
def test_every_command_has_its_module(command: str) -> None:
    assert callable(import_module(f"fleet_controller.cli.commands.{command}").run)


@pytest.mark.parametrize(
    ("text", "value"), [("95%", 0.95), ("95 %", 0.95), ("0.95", 0.95), ("2%", 0.02), ("0", 0.0)]
)
def test_percentages_are_read_as_people_write_them(text: str, value: float) -> None:
    assert percentage(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "much", "95", "-1%", "100%", "nan", "inf"])
def test_impossible_percentage_is_told(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        percentage(text)


@pytest.mark.parametrize("command", [name for name, _, _ in COMMANDS])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([command, "--help"])
    assert ended.value.code == 0
    assert f"fleetctl {command}" in capsys.readouterr().out
