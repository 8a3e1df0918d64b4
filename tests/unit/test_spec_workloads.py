"""What the load patterns of a job file mean, and that every example of the guide is one."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from ruamel.yaml import YAML

from fleet_controller.core.estimate import estimate
from fleet_controller.core.plan import make_plan
from fleet_controller.spec.load import LoadedJob, load_job
from fleet_controller.spec.schema import job_schema
from fleet_protos.trial import Lengths, Stage, Workload

GUIDE = Path(__file__).parents[2] / "docs" / "user" / "job-file.md"
HEAD = """\
apiVersion: benchfleet/v1
kind: Job
name: small
model: {path: m}
engine: {kind: simulated}
"""
EXAMPLES = [textwrap.dedent(block) for block in re.findall(r"(?:^ {4}workloads:\n)(?:^ {4,}.*\n)+", GUIDE.read_text(), re.M)]


def load(workloads: str) -> LoadedJob:
    return load_job(f"{HEAD}workloads:\n{textwrap.indent(textwrap.dedent(workloads), '  ')}", "job.yaml")


def cells(workloads: str) -> dict[str, Workload]:
    return {cell.name: cell for cell in load(workloads).job.workloads}


def test_the_guide_has_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.split("\n")[1].split(":")[0].strip())
def test_an_example_of_the_guide_has_no_findings_and_keeps_the_schema(example: str) -> None:
    assert load_job(HEAD + example, "job.yaml").findings == ()
    content: Any = YAML(typ="safe", pure=True).load(HEAD + example)
    assert [error.message for error in jsonschema.Draft202012Validator(job_schema()).iter_errors(content)] == []


def test_a_ramp_is_an_open_loop_as_long_as_its_stages() -> None:
    [cell] = cells("r: {ramp: [{start: 0, end: 8, duration: 1m}, {start: 8, end: 8, duration: 30}], output_tokens: 5}").values()
    assert cell.stages == (Stage(0.0, 8.0, 60.0), Stage(8.0, 8.0, 30.0))
    assert (cell.rate_per_s, cell.concurrency, cell.duration_s, cell.arrivals, cell.is_open) == (0.0, 0, 90.0, "poisson", True)


def test_gamma_arrivals_carry_their_burstiness() -> None:
    found = cells("b: {rate: [1, 2], arrivals: gamma, burstiness: 0.5, duration: 1m, output_tokens: 5}")
    assert {name: (cell.arrivals, cell.burstiness) for name, cell in found.items()} == {"b@1/s": ("gamma", 0.5), "b@2/s": ("gamma", 0.5)}


def test_lengths_are_a_number_or_a_distribution() -> None:
    found = cells(
        """\
        fixed: {concurrency: 1, output_tokens: 5}
        even: {concurrency: 1, output_tokens: {uniform: {min: 100, max: 300}}}
        tail: {concurrency: 1, output_tokens: {lognormal: {median: 150, sigma: 0.8, max: 2000}}}
        """
    )
    assert {name: (cell.output_tokens, cell.output) for name, cell in found.items()} == {
        "fixed": (5, Lengths()),
        "even": (0, Lengths("uniform", 100, 300)),
        "tail": (0, Lengths("lognormal", most=2000, median=150, sigma=0.8)),
    }
    assert (found["even"].mean_output_tokens, round(found["tail"].mean_output_tokens)) == (200, 207)


def test_the_guess_of_the_time_knows_ramps_and_drawn_lengths() -> None:
    ramp, rate, even, fixed = (
        load(text).job
        for text in (
            "a: {ramp: [{start: 0, end: 8, duration: 30s}, {start: 8, end: 8, duration: 30s}], output_tokens: 200}",
            "a: {rate: 6, duration: 60s, output_tokens: 200}",
            "a: {concurrency: 1, output_tokens: {uniform: {min: 100, max: 300}}}",
            "a: {concurrency: 1, output_tokens: 200}",
        )
    )
    assert estimate(make_plan(ramp, ["h"]), ramp) == estimate(make_plan(rate, ["h"]), rate)
    assert estimate(make_plan(even, ["h"]), even) == estimate(make_plan(fixed, ["h"]), fixed)


def test_workloads_go_into_a_plan_as_json() -> None:
    plan = make_plan(load("r: {ramp: [{start: 0, end: 8, duration: 1m}], output_tokens: 5}").job, ["h"])
    assert json.loads(json.dumps(plan.to_json()))["workloads"] == ["r"]
