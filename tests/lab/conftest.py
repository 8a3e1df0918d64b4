"""Owns the fixtures that give a test a lab, and what happens where none can be made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.fleet import LabFleet
from tests.lab.lab import Lab
from tests.lab.programs import obstacle

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.lab)


def open_lab() -> Lab:
    """A lab; where there can be none, the test is skipped, and fails in CI."""
    reason = obstacle()
    if reason and os.environ.get("CI"):
        pytest.fail(f"NOT RUN: {reason}")
    if reason:
        pytest.skip(f"NOT RUN: {reason}")
    return Lab.open()


@pytest.fixture
def lab() -> Iterator[Lab]:
    """An empty lab for one test."""
    opened = open_lab()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Lab]:
    """An empty lab for all tests of a file: hosts come up once; each test leaves them as it found
    them.
    """
    opened = open_lab()
    yield opened
    opened.close()


@pytest.fixture
def lab_fleet(lab: Lab, tmp_path: Path) -> Iterator[LabFleet]:
    """A fleet without hosts on an empty lab: `up(3)` gives it hosts with agents and a controller."""
    opened = LabFleet.open(lab, tmp_path)
    yield opened
    opened.close()
