"""Owns the choice of how answers are read in a test: by the C parts of the load client, or in
Python as on a host without a compiler.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from fleet_agent.load.client.native.library import (
    FOLDER_VARIABLE,
    build_library,
    find_compiler,
    load_library,
)

WAYS: Final = ("c", "python")
FOLDER: Final = Path(__file__).resolve().parents[2] / ".venv" / "native"


def need_compiler() -> None:
    """Skips a test that needs one, or fails in CI."""
    if not find_compiler():
        told = "NOT RUN: there is no C compiler here (apt-get install gcc libc6-dev)"
        assert not os.environ.get("CI"), told
        pytest.skip(told)


@contextmanager
def reading(way: str) -> Iterator[str]:
    """Read in that way while inside; a test of C is skipped on a machine without a compiler, and
    fails in CI.
    """
    if way == "c":
        need_compiler()
    before = os.environ.get(FOLDER_VARIABLE)
    os.environ[FOLDER_VARIABLE] = str(build_library(FOLDER).parent) if way == "c" else ""
    load_library.cache_clear()
    try:
        yield way
    finally:
        os.environ.pop(FOLDER_VARIABLE)
        if before is not None:
            os.environ[FOLDER_VARIABLE] = before
        load_library.cache_clear()
