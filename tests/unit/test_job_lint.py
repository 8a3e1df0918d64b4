"""Broken job files as data: each file of data/lint gives exactly the findings beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fleet_controller.job_file.job_loader import load_job
from fleet_controller.yaml.findings import ERROR, Finding, JobRejected

CASES = sorted((Path(__file__).parent / "data" / "lint").glob("*.yaml"))
GUIDE = Path(__file__).parents[2] / "docs" / "user" / "job-file.md"
BEYOND_CASES = {
    "hosts_left_over", "load_only_host", "no_hosts", "no_such_label", "too_few_hosts", "too_many_trials", "too_many_variants",
    "more_findings", "too_large", "python_default", "one_variant",
    "bad_file", "file_unreadable", "files_too_large", "unknown_host", "host_variable", "no_load_hosts", "load_host_has_trials", "too_few_shards",
}  # fmt: skip


def findings_in(path: Path) -> tuple[Finding, ...]:
    try:
        return load_job(path.read_bytes(), path.name).findings
    except JobRejected as rejected:
        return rejected.findings


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_broken_file_gives_exactly_its_findings(case: Path) -> None:
    expected = json.loads(case.with_suffix(".json").read_text())
    found = [finding.to_json() for finding in findings_in(case)]
    exact = ("code", "severity", "line", "column", "key")
    assert [[one[name] for name in exact] for one in found] == [
        [one[name] for name in exact] for one in expected
    ]
    for one, wanted in zip(found, expected, strict=True):
        assert one["file"] == case.name
        assert wanted["message"] in one["message"]
        assert wanted["hint"] in one["hint"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_only_a_file_with_an_error_is_refused(case: Path) -> None:
    expected = json.loads(case.with_suffix(".json").read_text())
    if any(one["severity"] == ERROR for one in expected):
        with pytest.raises(JobRejected):
            load_job(case.read_bytes(), case.name)
    else:
        assert load_job(case.read_bytes(), case.name).job.name == "nccl-test"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_every_error_says_what_to_do(case: Path) -> None:
    told_in_message = (
        "wrong_type",
        "out_of_range",
    )  # `… is 7, not text`, `… is 0, it must be above 0`
    without = [
        finding
        for finding in findings_in(case)
        if not finding.hint and finding.code not in told_in_message
    ]
    assert [finding for finding in without if finding.severity == ERROR] == []


def test_the_guide_explains_every_code_and_no_other() -> None:
    explained = set(
        re.findall(r"^\| `([a-z0-9_]+)` \|", GUIDE.read_text().split("## Findings")[1], re.M)
    )
    shown = {finding.code for case in CASES for finding in findings_in(case)}
    assert explained == shown | BEYOND_CASES
