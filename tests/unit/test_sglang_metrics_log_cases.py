"""Owns the promises of the field cases of benchmarks whose evidence is in the server's log; each
case is a data file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet_knowledge.server_log.log_reader import LogReader

FOLDER = Path(__file__).parent / "data" / "field"


def diagnosed(text: str) -> dict[str, Any]:
    reader = LogReader()
    reader.feed(text.encode())
    return dict(reader.finish().to_json())


@pytest.mark.parametrize(
    ("name", "figures"),
    [("E07", ("cache_hit_rate",)), ("E11", ("cuda_graph_share", "first_bs_without_graph"))],
)
def test_a_measurement_that_the_log_belies_is_warned_of(
    name: str, figures: tuple[str, ...]
) -> None:
    case = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    told, expected = diagnosed(case["input"]), case["expected"]
    assert [told["decode"][figure] for figure in figures] == pytest.approx(
        [expected[figure] for figure in figures], abs=1e-4
    )
    (warning,) = [warning for warning in told["warnings"] if warning["code"] == expected["flag"]]
    assert expected["hint_says"] in warning["hint"]


def test_e06_a_kernel_that_is_built_while_requests_run_is_warned_of() -> None:
    case = json.loads((FOLDER / "E06.json").read_text(encoding="utf-8"))
    assert "jit_in_traffic" in [
        warning["code"] for warning in diagnosed(case["input"]["log"])["warnings"]
    ]
