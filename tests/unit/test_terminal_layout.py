"""Promises of what reaches a screen: no number is ever cut, and a percentage says what it is of."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_controller.analysis.compare_runs import compare
from fleet_controller.analysis.comparison_values import Comparison, ComparisonConditions
from fleet_controller.core.controller_api import StoredRun
from fleet_controller.report.comparison_export import (
    comparison_csv,
    comparison_json,
    comparison_markdown,
)
from fleet_controller.report.comparison_output import change_text, signed_percent
from fleet_controller.report.table import (
    Table,
    aligned_lines,
    as_markdown,
    cell_width,
    stacked_lines,
)
from fleet_controller.report.terminal_layout import comparison_text, table_text
from fleet_protos.trial_types import Gate, GateEffect, Outcome, RunResult

VARIANTS = {
    "nccl=default,speculation=none": (62.9, 63.4, 62.1),
    "nccl=tuned,speculation=eagle3-5": (88.8, 87.9, 90.1),
}


@pytest.fixture
def comparison() -> Comparison:
    runs = [
        StoredRun(
            f"{variant}-{block}", 1, variant, "box-1", block, Outcome.OK,
            RunResult(
                workload="single", metrics={"output_tok_s": value, "tpot_s_mean": 1 / value, "accept_length": 2.5},
                gates=(Gate("client_limited", GateEffect.FLAG, "sends were late"),) if block == 3 else (),
            ),
        )
        for variant, values in VARIANTS.items()
        for block, value in enumerate(values, start=1)
    ]  # fmt: skip
    return compare(
        runs, next(iter(VARIANTS)), conditions=ComparisonConditions("demo-1a2b3c", "simulated", 240)
    )


def numbers_in(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:\.\d+)?", re.sub(r"\033\[[0-9;]*m", "", text)))


@pytest.mark.parametrize("width", [20, 60, 100, 130, 160, 200, 400])
@pytest.mark.parametrize("colour", [True, False])
def test_every_number_is_there_at_every_width(
    comparison: Comparison, width: int, colour: bool
) -> None:
    assert numbers_in(comparison_text(comparison, width, colour)) >= numbers_in(
        comparison_text(comparison, None, False)
    ) - {"0"}


@pytest.mark.parametrize("width", [130, 160, 200])
def test_a_table_is_never_wider_than_its_terminal(comparison: Comparison, width: int) -> None:
    body = comparison_text(comparison, width, False).split("simulated ×240: ")[0]
    assert max(map(cell_width, body.splitlines())) <= width


def test_percentages_say_what_they_are_of() -> None:
    assert change_text("output_tok_s", 88.8 / 62.9) == "+41.2 % throughput"
    assert change_text("tpot_s_mean", 62.9 / 88.8) == "−29.2 % time per token"
    assert signed_percent(1.0) == "+0.0 %"


def test_simulated_results_say_so_in_every_format(comparison: Comparison) -> None:
    for text in (comparison_text(comparison, None, False), comparison_markdown(comparison)):
        assert "simulated ×240" in text
    assert (comparison_json(comparison)["engine"], comparison_json(comparison)["time_scale"]) == (
        "simulated",
        240,
    )
    assert all(
        (row["engine"], row["time_scale"]) == ("simulated", "240")
        for row in csv.DictReader(io.StringIO(comparison_csv(comparison)))
    )


def test_gates_are_counted_in_words_and_in_json(comparison: Comparison) -> None:
    assert "flag client_limited: sends were late" in comparison_text(comparison, None, False)
    assert comparison_json(comparison)["rows"][0]["gates"] == [
        {
            "code": "client_limited",
            "count": 1,
            "message": "sends were late",
            "reasons": [],
            "voided": 0,
        }
    ]


def test_json_rows_hold_the_keys_of_the_contract(comparison: Comparison) -> None:
    measured = ["variant", "host", "workload", "metric", "launches", "runs", "mean", "interval"]
    contract = [*measured, "ratio", "ratio_interval", "verdict", "needs"]
    row = json.loads(json.dumps(comparison_json(comparison)))["rows"][1]
    assert list(row)[:13] == [*contract, "gates"]
    assert (
        row["launches"],
        row["runs"],
        row["verdict"],
        row["needs"],
        len(row["ratio_interval"]),
    ) == (3, 3, "FASTER", None, 2)


def test_inconclusive_rows_say_what_they_need() -> None:
    runs = [
        StoredRun(
            f"{variant}{block}",
            1,
            variant,
            "h",
            block,
            Outcome.OK,
            RunResult(workload="w", metrics={"output_tok_s": value}),
        )
        for variant, values in (("a", (100, 103, 99)), ("b", (104, 99, 101)))
        for block, value in enumerate(values, start=1)
    ]
    text = comparison_text(compare(runs, "a"), None, False)
    assert re.search(r"\d+ more launches of each", text)
    assert "INCONCLUSIVE: the interval includes a ratio of 1 and reaches beyond ±2 %" in text


def test_a_reason_says_which_metric_it_is_about_when_they_differ() -> None:
    values = (
        ("a", ((100, 5.0), (101, 5.6), (99, 4.7))),
        ("b", ((104, 5.1), (99, 5.3), (101, 4.9))),
    )
    runs = [
        StoredRun(
            f"{v}{block}",
            1,
            v,
            "h",
            block,
            Outcome.OK,
            RunResult("w", metrics={"output_tok_s": rate, "tpot_s_mean": time}),
        )
        for v, launches in values
        for block, (rate, time) in enumerate(launches, start=1)
    ]
    told = [
        line
        for line in comparison_text(compare(runs, "a"), None, False).splitlines()
        if line.startswith("INCONCLUSIVE")
    ]
    assert [line.rpartition("(")[2] for line in told] == [
        "b w on h, throughput)",
        "b w on h, time per token)",
    ]


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=5))
def test_layouts_hold_every_cell_whole(rows: list[tuple[str, str]]) -> None:
    table = Table(("one", "two"), tuple(rows), frozenset({"two"}))
    for layout in ("\n".join(aligned_lines(table)), "\n".join(stacked_lines(table))):
        assert all(cell.rstrip() in layout for row in rows for cell in row)


def test_empty_table_prints_nothing() -> None:
    assert table_text(Table(("one",), ()), 80, False) == ""


def test_pipe_in_a_name_does_not_break_markdown() -> None:
    assert as_markdown(Table(("a",), (("x|y",),))).splitlines()[2] == "| x\\|y |"
