"""Owns how what a lab test found is shown: past pytest's capture, and at the end of the file that
$LAB_REPORT names. Judges nothing.

Also which parameters of a test were chosen, where one fixture does the work of all of them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


def chosen(session: pytest.Session, parameter: str) -> set[Any]:
    """The values of `parameter` for which this session runs tests."""
    calls = [
        item.callspec
        for item in session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    ]
    return {call.params[parameter] for call in calls if parameter in call.params}


def show(config: pytest.Config, text: str) -> None:
    """Print it whether or not the test fails."""
    capture = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\n{text}")
    if os.environ.get("LAB_REPORT"):
        with Path(os.environ["LAB_REPORT"]).open("a") as file:
            file.write(f"{text}\n\n")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
