"""Broken fleet files as data: each file of data/fleet gives exactly the findings beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fleet_controller.fleet_file.fleet_loader import LoadedFleet, check_fleet
from fleet_controller.ssh.ssh_config import read_ssh_config
from fleet_controller.yaml.findings import ERROR, Finding, FleetRejected

DATA = Path(__file__).parent / "data" / "fleet"
CASES = sorted(DATA.glob("*.yaml"))
GUIDE = Path(__file__).parents[2] / "docs" / "user" / "fleet-file.md"
BEYOND_CASES = {
    "too_many_hosts",
    "ssh_config",
    "ssh_config_ignored",
    "too_large",
    "not_text",
    "tab",
    "more_findings",
}


def loaded(case: Path) -> LoadedFleet:
    return check_fleet(
        case.read_bytes(), case.name, read_ssh_config(DATA / "ssh_config"), Path("/home/USER")
    )


def findings_in(case: Path) -> tuple[Finding, ...]:
    try:
        return loaded(case).findings
    except FleetRejected as rejected:
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
        assert wanted["message"] in str(one["message"])
        assert wanted["hint"] in str(one["hint"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_only_a_file_with_an_error_is_refused(case: Path) -> None:
    expected = json.loads(case.with_suffix(".json").read_text())
    if any(one["severity"] == ERROR for one in expected):
        with pytest.raises(FleetRejected):
            loaded(case)
    else:
        assert loaded(case).inventory.hosts


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_every_error_says_what_to_do(case: Path) -> None:
    told_in_message = ("wrong_type", "out_of_range")
    without = [
        finding
        for finding in findings_in(case)
        if not finding.hint and finding.code not in told_in_message
    ]
    assert [finding for finding in without if finding.severity == ERROR] == []


def test_no_finding_repeats_a_password() -> None:
    text = "apiVersion: benchfleet/v1\nkind: Fleet\ndefaults: {password: hunter2}\nhosts: [{name: a, passphrase: hunter2}]\n"
    with pytest.raises(FleetRejected) as rejected:
        check_fleet(text, "fleet.yaml", home=Path("/nowhere"))
    assert "hunter2" not in " ".join(map(str, rejected.value.findings))


def test_a_fleet_too_large_for_one_controller_is_refused_before_it_is_written_out() -> None:
    text = (
        "apiVersion: benchfleet/v1\nkind: Fleet\nhosts: ['a[1-9000]', 'b[1-9000]', 'c[1-9000]']\n"
    )
    with pytest.raises(FleetRejected) as rejected:
        check_fleet(text, "fleet.yaml", home=Path("/nowhere"))
    assert [(finding.code, finding.line) for finding in rejected.value.findings] == [
        ("too_many_hosts", 3)
    ]


def test_the_guide_explains_every_code_and_no_other() -> None:
    explained = set(
        re.findall(r"^\| `([a-z0-9_]+)` \|", GUIDE.read_text().split("## Findings")[1], re.M)
    )
    shown = {finding.code for case in CASES for finding in findings_in(case)}
    assert explained == shown | BEYOND_CASES
