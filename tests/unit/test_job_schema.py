"""The JSON Schema that editors use agrees with what is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from fleet_controller.job_file.job_models import job_schema
from fleet_controller.job_file.job_template import job_template

ROOT = Path(__file__).parents[2]
LINT = sorted((ROOT / "tests" / "unit" / "data" / "lint").glob("*.json"))
ACCEPTED = [
    case for case in LINT if all(one["severity"] != "error" for one in json.loads(case.read_text()))
]


def read(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def faults(text: str) -> list[str]:
    return [
        error.message
        for error in jsonschema.Draft202012Validator(job_schema()).iter_errors(read(text))
    ]


def test_the_committed_schema_is_that_of_the_models() -> None:
    """Made by `fleetctl schema job > docs/schema/job.schema.json`."""
    assert json.loads((ROOT / "docs" / "schema" / "job.schema.json").read_text()) == job_schema()


def test_the_schema_is_itself_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(job_schema())


@pytest.mark.parametrize("name", ["demo.yaml", "kimi-eagle3-nccl.yaml"])
def test_an_example_names_the_schema_and_keeps_it(name: str) -> None:
    text = (ROOT / "examples" / name).read_text()
    assert text.startswith("# yaml-language-server: $schema=../docs/schema/job.schema.json\n")
    assert faults(text) == []


def test_the_template_keeps_the_schema() -> None:
    assert faults(job_template()) == []


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.stem)
def test_the_schema_accepts_what_lint_accepts(case: Path) -> None:
    assert faults(case.with_suffix(".yaml").read_text()) == []


WRONG_SHAPES = [
    "07-wrong-types",
    "08-unknown-keys",
    "09-missing-keys",
    "10-bad-durations",
    "15-empty-workloads",
    "41-wrong-file",
]


@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_the_schema_refuses_wrong_shapes_too(name: str) -> None:
    assert faults((ROOT / "tests" / "unit" / "data" / "lint" / f"{name}.yaml").read_text()) != []
