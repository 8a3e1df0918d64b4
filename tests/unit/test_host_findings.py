"""A finding can be read whatever the file holds: a value of any size is quoted by its beginning."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet_controller.fleet_file.fleet_loader import check_fleet
from fleet_controller.job_file.job_loader import load_job
from fleet_controller.yaml.findings import LONGEST_TEXT, FileRejected, Finding

EXAMPLES = Path(__file__).parents[2] / "examples"
LONG = "x" * 2_000
FLEET = """\
apiVersion: benchfleet/v1
kind: Fleet
defaults: {ssh: {user: me}, labels: {a: b}, env: {A: b}, allow: {env: [A]}, agent_port: 7433, metrics: "127.0.0.1:9400"}
groups: {one: {labels: {a: c}}}
hosts:
  gpu01: {address: 10.0.0.1, group: one, labels: {a: d}, python: /usr/bin/python3, install: {mode: auto, path: /opt/x}}
"""


def spoilt(value: Any, long: Any = LONG) -> Iterator[Any]:
    """The document with each of its values, and then each of its keys, replaced by a long one."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield {(long if one == key else one): other for one, other in value.items()}
            for changed in spoilt(entry, long):
                yield {**value, key: changed}
    elif isinstance(value, list):
        for at, entry in enumerate(value):
            for changed in spoilt(entry, long):
                yield [*value[:at], changed, *value[at + 1 :]]
    else:
        yield long


def findings_of(document: Any, *, fleet: bool) -> tuple[Finding, ...]:
    text = yaml.safe_dump(document, sort_keys=False)
    try:
        return (
            check_fleet(text, "fleet.yaml").findings
            if fleet
            else load_job(text, "job.yaml", EXAMPLES).findings
        )
    except FileRejected as rejected:
        assert len(rejected.message) < 2 * LONGEST_TEXT
        return rejected.findings


@pytest.mark.parametrize("long", [LONG, "a `b` " * 500], ids=["word", "quotes"])
@pytest.mark.parametrize("name", ["demo.yaml", "fleet"])
def test_no_value_and_no_key_is_repeated_in_full(name: str, long: str) -> None:
    document = yaml.safe_load(FLEET if name == "fleet" else (EXAMPLES / name).read_text())
    found = 0
    for changed in spoilt(copy.deepcopy(document), long):
        for finding in findings_of(changed, fleet=name == "fleet"):
            found += 1
            for text in (finding.key, finding.message, finding.hint):
                assert len(text) <= LONGEST_TEXT, text[:200]
    assert found > 10


def test_what_is_said_after_a_long_value_is_kept() -> None:
    told = Finding(
        "bad_name",
        "error",
        "f",
        1,
        1,
        "k",
        f"`{LONG}` cannot be a name, `short` can",
        f"not {LONG} but this",
    )
    assert told.message == f"`{'x' * 119}…` cannot be a name, `short` can"
    assert told.hint.endswith("x but this")
    assert len(told.hint) == LONGEST_TEXT
