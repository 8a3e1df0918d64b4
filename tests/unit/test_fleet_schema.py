"""The JSON Schema of the fleet file agrees with what is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from fleet_controller.fleet_file.fleet_models import fleet_schema
from fleet_controller.fleet_file.fleet_template import fleet_template

ROOT = Path(__file__).parents[2]
CASES = sorted((ROOT / "tests" / "unit" / "data" / "fleet").glob("*.json"))
ACCEPTED = [
    case
    for case in CASES
    if all(one["severity"] != "error" for one in json.loads(case.read_text()))
]
WRONG_SHAPES = [
    "04-wrong-kind",
    "05-missing-keys",
    "06-unknown-keys",
    "07-passwords",
    "08-wrong-types",
    "13-bad-ports",
    "25-negative-cost",
]


def faults(text: str) -> list[str]:
    value: Any = YAML(typ="safe", pure=True).load(text)
    return [
        error.message
        for error in jsonschema.Draft202012Validator(fleet_schema()).iter_errors(value)
    ]


def test_the_committed_schema_is_that_of_the_models() -> None:
    """Made by `fleetctl schema fleet > docs/schema/fleet.schema.json`."""
    assert (
        json.loads((ROOT / "docs" / "schema" / "fleet.schema.json").read_text()) == fleet_schema()
    )


def test_the_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(fleet_schema())


def test_the_template_keeps_the_schema() -> None:
    assert faults(fleet_template()) == []


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.stem)
def test_the_schema_accepts_what_lint_accepts(case: Path) -> None:
    assert faults(case.with_suffix(".yaml").read_text()) == []


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_the_schema_refuses_wrong_shapes_too(name: str) -> None:
    assert faults((ROOT / "tests" / "unit" / "data" / "fleet" / f"{name}.yaml").read_text()) != []
