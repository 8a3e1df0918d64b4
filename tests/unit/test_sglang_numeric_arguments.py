"""Options of SGLang that take a number: what argparse would refuse after each launch is refused
before the first.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fleet_controller.job_file.job_loader import load_job
from fleet_controller.yaml.findings import Finding, JobRejected
from fleet_knowledge.sglang.numeric_arguments import (
    COUNTED,
    NUMBER,
    WHOLE,
    accepts_value,
    numeric_arguments,
)
from fleet_knowledge.sglang.server_arguments import known_arguments

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: job
model: {path: /models/tiny}
engine: {kind: sglang, python: python3, gpus: 1, args: {%s}}
factors: {nccl: {default: {%s}, tuned: {env: {NCCL_PROTO: LL}}}}
baseline: {nccl: default}
workloads: {single: {concurrency: 1, output_tokens: 50}}
"""


def refused(args: str, level: str = "") -> list[Finding]:
    try:
        found = load_job(JOB % (args, f"args: {{{level}}}" if level else ""), "job.yaml").findings
    except JobRejected as rejected:
        found = rejected.findings
    return [finding for finding in found if finding.code == "argument_value"]


def test_every_number_is_an_option_with_one_value_and_sizes_are_among_them() -> None:
    assert {name for name in numeric_arguments() if known_arguments()[name].kind != "v"} == set()
    assert set(numeric_arguments().values()) == {WHOLE, COUNTED, NUMBER}
    assert {
        "tp_size",
        "dp_size",
        "ep_size",
        "pp_size",
        "page_size",
        "max_running_requests",
        "chunked_prefill_size",
    } <= {name for name, kind in numeric_arguments().items() if kind == WHOLE}


@pytest.mark.parametrize("name", sorted(numeric_arguments()))
def test_a_default_of_sglang_is_a_value_of_its_option(name: str) -> None:
    assert (
        accepts_value(name, known_arguments()[name].default or 1)
        or numeric_arguments()[name] == WHOLE
    )  # 10.0 is written for an int in places


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("tp_size: eight", "`tp_size` takes a whole number, but it is 'eight'"), ("tp: '8 GPUs'", "'8 GPUs'"), ("tp_size: 8.0", "'8.0'"),
        ("dp_size: ''", "but it is ''"), ("page_size: 16k", "'16k'"), ("max_running_requests: 1e3", "'1000.0'"),
        ("context_length: lots", "'lots'"), ("context_length: 32K", "'32K'"),
        ("mem_fraction_static: 85%", "`mem_fraction_static` takes a number"),
        ("tp_size: {a: 1}", "takes a whole number"),
    ],
)  # fmt: skip
def test_a_text_where_a_number_belongs_is_refused(written: str, told: str) -> None:
    (finding,) = refused(written)
    assert finding.severity == "error"
    assert told in finding.message
    (finding,) = refused("", written)
    assert finding.key.startswith("factors.nccl.default.args.")


@pytest.mark.parametrize(
    "written",
    ["tp_size: 1", "tp_size: '1'", "context_length: 32k", "context_length: 1.5M", "max_total_tokens: 1Ki", "mem_fraction_static: 0.8",
     "watchdog_timeout: 1e3", "page_size: false", "page_size: null", "chunked_prefill_size: -1", "served_model_name: eight"],
)  # fmt: skip
def test_what_argparse_takes_is_taken(written: str) -> None:
    assert refused(written) == []


@given(some.one_of(some.integers(), some.floats(), some.text(max_size=20)))
def test_whole_is_what_int_reads(value: object) -> None:
    try:
        int(str(value))
        reads = True
    except ValueError:
        reads = False
    assert accepts_value("tp_size", value) == reads
    assert accepts_value("served_model_name", value)
