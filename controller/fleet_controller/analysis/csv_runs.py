"""Reads measurements from CSV text into runs, and reports what is wrong in each faulty line."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches

from fleet_controller.core.controller_api import StoredRun
from fleet_protos.metric_names import HIGHER_IS_BETTER, OUTPUT_TOK_S
from fleet_protos.trial_types import Outcome, RunResult

REQUIRED = ("variant", "launch", "value")
OPTIONAL = ("host", "workload", "metric", "block")


@dataclass(frozen=True, slots=True)
class RowFinding:
    """What is wrong with one cell. `line` and `column` count from 1. `column` counts cells, not
    characters.
    """

    code: str
    line: int
    column: int
    key: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class CsvRuns:
    """The runs of a CSV text. Do not use the runs of a text with findings."""

    runs: tuple[StoredRun, ...]
    findings: tuple[RowFinding, ...]


def parse_csv_runs(text: str) -> CsvRuns:
    """Read the columns variant, launch and value, and the optional columns host, workload, metric
    and block. Several rows of one launch are its runs.

    Launches are paired only if `block` (a whole number from 1) says that they ran side by side.
    """
    rows = csv.reader(io.StringIO(text.lstrip("\ufeff"), newline=""), strict=True)
    runs: list[StoredRun] = []
    problems: list[RowFinding] = []
    try:
        header = [name.strip() for name in next(rows, [])]
        problems += _header_findings(header)
        for cells in () if problems else rows:
            found = (
                list(_row_findings(rows.line_num, header, cells))
                if any(cell.strip() for cell in cells)
                else None
            )
            problems += found or ()
            if found == []:
                runs.append(
                    _stored_run(
                        dict(zip(header, (cell.strip() for cell in cells), strict=True)),
                        rows.line_num,
                    )
                )
    except csv.Error as error:
        problems.append(
            RowFinding(
                "csv_syntax",
                rows.line_num,
                1,
                "",
                f"not CSV: {error}",
                "put cells that contain quotes or line ends into quotes",
            )
        )
    if not runs and not problems:
        problems.append(
            RowFinding(
                "csv_empty",
                1,
                1,
                "",
                "there is no row below the header",
                "write one row per launch or run",
            )
        )
    return CsvRuns(tuple(runs), tuple(problems))


def _header_findings(header: list[str]) -> Iterator[RowFinding]:
    for name in REQUIRED:
        if name not in header:
            required, optional = ", ".join(REQUIRED), ", ".join(OPTIONAL)
            hint = f"the first line must name {required} and may name {optional}"
            yield RowFinding("csv_column_missing", 1, 1, name, f"column {name!r} is missing", hint)
    for column, name in enumerate(header, start=1):
        if name not in REQUIRED + OPTIONAL:
            near, known = (
                get_close_matches(name, REQUIRED + OPTIONAL, 1),
                ", ".join(REQUIRED + OPTIONAL),
            )
            hint = f"did you mean {near[0]!r}?" if near else f"the known columns are {known}"
            yield RowFinding(
                "csv_column_unknown", 1, column, name, f"unknown column {name!r}", hint
            )
        elif header.index(name) != column - 1:
            yield RowFinding(
                "csv_column_twice", 1, column, name, f"column {name!r} occurs twice", "remove one"
            )


def _row_findings(line: int, header: list[str], cells: list[str]) -> Iterator[RowFinding]:
    count, expected = len(cells), len(header)
    if count != expected:
        yield RowFinding(
            "csv_cells",
            line,
            1,
            "",
            f"the row has {count} cells, but the header has {expected} cells",
            "write one cell per column",
        )
        return
    for column, (key, cell) in enumerate(zip(header, cells, strict=True), start=1):
        problem = _cell_problem(key, cell.strip())
        if problem:
            yield RowFinding("csv_value", line, column, key, *problem)


def _cell_problem(key: str, cell: str) -> tuple[str, str] | None:
    if key in ("variant", "launch") and not cell:
        return (
            f"{key} is empty",
            "write a name: rows with the same variant and launch are runs of one launch",
        )
    if key == "value" and not _is_positive(cell):
        return (
            f"value {cell!r} is not a number above 0",
            "leave out the rows of failed measurements",
        )
    if key == "metric" and cell and cell not in HIGHER_IS_BETTER:
        near, known = get_close_matches(cell, HIGHER_IS_BETTER, 1), ", ".join(HIGHER_IS_BETTER)
        return (
            f"unknown metric {cell!r}",
            f"did you mean {near[0]!r}?" if near else f"use one of these metrics: {known}",
        )
    if key == "block" and cell and not (cell.isascii() and cell.isdigit() and int(cell) > 0):
        return (
            f"block {cell!r} is not a whole number from 1",
            "give launches that ran side by side the same block, or leave the cell empty",
        )
    return None


def _is_positive(cell: str) -> bool:
    try:
        value = float(cell)
    except ValueError:
        return False
    return math.isfinite(value) and value > 0


def _stored_run(cells: dict[str, str], line: int) -> StoredRun:
    variant, host = cells["variant"], cells.get("host", "")
    run = RunResult(
        workload=cells.get("workload", ""),
        index=line,
        metrics={cells.get("metric") or OUTPUT_TOK_S: float(cells["value"])},
    )
    trial = "\n".join((variant, host, cells["launch"]))
    return StoredRun(trial, 1, variant, host, int(cells.get("block") or 0), Outcome.OK, run)
