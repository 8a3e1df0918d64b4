"""Owns the promises of the log reader on cases from the field and on whole logs; each is a data
file, checked by its meaning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fleet_knowledge.server_log.log_reader import LogReader

DATA = Path(__file__).parent / "data"
OTHERS = {"A21", "A23"}  # the host's, tested with its readers
CASES = [
    file for file in sorted(DATA.glob("field/[AB]*.json")) if file.stem not in OTHERS
] + sorted(DATA.glob("logs/*.json"))
NEAR = 0.02


def told(text: str) -> dict[str, Any]:
    reader = LogReader()
    reader.feed(text.encode())
    return reader.finish().to_json()


def at(document: Any, path: str) -> Any:
    for key in path.split("."):
        document = document.get(key) if isinstance(document, Mapping) else None
    return document


def holds(expected: Any, actual: Any) -> bool:
    """Equal in what is expected: more keys than expected do no harm, numbers may be rounded."""
    if isinstance(expected, Mapping):
        return isinstance(actual, Mapping) and all(
            holds(value, actual.get(key)) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(expected)
            and all(map(holds, expected, actual))
        )
    if isinstance(expected, float | int) and not isinstance(expected, bool):
        return isinstance(actual, float | int) and abs(actual - expected) <= NEAR
    return bool(actual == expected)


def test_all_cases_are_there() -> None:
    assert len(CASES) >= 30


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_a_log_from_the_field_is_read_by_its_meaning(file: Path) -> None:
    case = json.loads(file.read_text(encoding="utf-8"))
    document = told(case["input"])
    document["warnings"] = [
        [warning["code"], warning["severity"], warning.get("reason")]
        for warning in document["warnings"]
    ]
    wrong = {
        path: at(document, path)
        for path, value in case["expected"].items()
        if not holds(value, at(document, path))
    }
    assert wrong == {}, case["description"]


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_a_hint_says_what_helps_and_not_what_harms(file: Path) -> None:
    case = json.loads(file.read_text(encoding="utf-8"))
    document = told(case["input"])
    document["everything"] = json.dumps(document)
    missing = [
        (key, words)
        for key, several in case.get("says", {}).items()
        for words in several
        if words not in (document[key] or "")
    ]
    harmful = [
        (key, words)
        for key, several in case.get("lacks", {}).items()
        for words in several
        if words in (document[key] or "")
    ]
    assert (missing, harmful) == ([], [])
