"""Owns the promises about pasted launches, each a data file: what is carried over, what is told and
in which line, what never shows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet_controller.importers.detect_format import is_importable
from fleet_controller.importers.import_launch import ImportedLaunch, import_launch
from fleet_controller.job_file.job_loader import load_job
from fleet_controller.yaml.findings import Finding, JobRejected

DATA = Path(__file__).parent / "data"
CASES = [DATA / "field" / f"{name}.json" for name in ("G01", "G02", "G04", "G05", "G06")] + sorted(
    (DATA / "importers").glob("*.json")
)


def read(path: Path) -> tuple[ImportedLaunch, dict[str, Any], str]:
    content = json.loads(path.read_text(encoding="utf-8"))
    text = "\n".join(content["input"])
    return import_launch(text, "launch.sh"), content["expected"], text


def says(finding: Finding, wanted: dict[str, Any]) -> bool:
    told = {
        "code": finding.code,
        "line": finding.line,
        "key": finding.key,
        "severity": finding.severity,
    }
    return (
        all(told[name] == value for name, value in wanted.items() if name != "says")
        and wanted.get("says", "") in finding.message
    )


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_pasted_launch_is_read_as_it_is_meant(path: Path) -> None:
    pasted, expected, _ = read(path)
    assert pasted.verdict == expected["verdict"], [str(finding) for finding in pasted.findings]
    wanted = expected.get("launch", {})
    assert {name: pasted.launch[name] for name in wanted} == wanted


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_what_is_not_carried_over_is_told_with_its_line(path: Path) -> None:
    pasted, expected, _ = read(path)
    told = [str(finding) for finding in pasted.findings]
    missing = [
        wanted
        for wanted in expected.get("findings", ())
        if not any(says(finding, wanted) for finding in pasted.findings)
    ]
    assert (missing, told) == ([], told)
    assert not {finding.code for finding in pasted.findings} & set(expected.get("no_finding", ()))
    assert (
        any(expected.get("hint_says", "") in finding.hint for finding in pasted.findings)
        or not pasted.findings
    )


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_job_that_is_made_lints_clean_or_names_what_must_be_filled_in(path: Path) -> None:
    pasted, expected, _ = read(path)
    assert bool(pasted.job_file) != expected.get("no_job", False)
    if not pasted.job_file:
        return
    for text in expected.get("job_says", ()):
        assert any(part in pasted.job_file for part in text.split("|")), pasted.job_file
    try:
        load_job(pasted.job_file, "job.yaml")
        assert pasted.verdict == "ok" or any(
            finding.severity == "error" for finding in pasted.findings
        )
    except JobRejected as rejected:
        errors = [finding for finding in rejected.findings if finding.severity == "error"]
        unfilled = {finding.line for finding in errors if finding.code == "unexpanded_variable"}
        told = {finding.code for finding in pasted.findings}
        assert pasted.verdict in ("edit", "no_launch_command")
        assert unfilled == {
            number
            for number, line in enumerate(pasted.job_file.split("\n"), start=1)
            if "# fill in" in line
        }
        assert [
            finding
            for finding in errors
            if finding.line not in unfilled and finding.code not in told
        ] == []


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_no_secret_is_in_anything_that_comes_out(path: Path) -> None:
    pasted, expected, _ = read(path)
    out = json.dumps(pasted.to_json(), ensure_ascii=False)
    assert [secret for secret in expected.get("never", ()) if secret in out] == []


@pytest.mark.parametrize(
    "path",
    [path for path in CASES if path.stem not in ("nothing", "other-engine")],
    ids=lambda path: path.stem,
)
def test_pasted_file_is_not_taken_for_a_job(path: Path) -> None:
    assert is_importable(read(path)[2])
