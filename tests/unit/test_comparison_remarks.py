"""What a comparison says next to its numbers: cut intervals, flags, and ratios unlike their means."""

from __future__ import annotations

from dataclasses import replace

from fleet_controller.analysis.compare_runs import compare
from fleet_controller.analysis.comparison_values import Comparison
from fleet_controller.core.controller_api import JobSummary, StoredRun
from fleet_controller.report.comparison_output import comparison_remarks, comparison_table
from fleet_controller.report.job_progress import run_text
from fleet_protos.trial_types import Gate, GateEffect, Outcome, RunResult

FLAG = Gate("shared_host", GateEffect.FLAG, "another trial ran")
VOID = Gate("short_output", GateEffect.VOID_RUN, "10 of 500 tokens")


def launch(variant: str, block: int, value: float, *gates: Gate) -> StoredRun:
    run = RunResult("single", 1, 1, 1.0, 1.0, 1, 0, 5, {"output_tok_s": value}, gates)
    return StoredRun(f"{variant}-{block}", 1, variant, "h", block, Outcome.OK, run)


def compared(base: list[float], variant: list[float], *gates: Gate) -> Comparison:
    runs = [launch("base", block, value) for block, value in enumerate(base, 1)]
    return compare(
        [*runs, *(launch("new", block, value, *gates) for block, value in enumerate(variant, 1))],
        "base",
    )


def test_no_interval_of_a_rate_is_negative() -> None:
    row = compared([10.0, 200.0], [11.0, 210.0]).rows[0]
    assert row.interval is not None
    assert (row.mean, row.interval.low) == (105.0, 0.0)
    assert row.interval.high > 1000  # the arithmetic t stays
    assert "0 … " in str(comparison_table(compared([10.0, 200.0], [11.0, 210.0])).rows[0])


def test_a_ratio_unlike_that_of_the_means_has_its_sentence() -> None:
    base, new = [10.0, 10.0, 40.0], [30.0, 20.0, 40.0]
    (line,) = [line for line in comparison_remarks(compared(base, new)) if "apart" in line]
    assert line.startswith("new single on h: +81.7 % throughput is the geometric mean")
    assert "ratios of the blocks; the two means are +50.0 % apart" in line
    alike = comparison_remarks(compared([10.0, 10.1, 10.2], [20.0, 20.1, 20.3]))
    assert not [line for line in alike if "apart" in line]


def test_a_flag_is_not_listed_as_a_void_run() -> None:
    remarks = comparison_remarks(compared([10.0, 10.1], [20.0, 20.1], FLAG))
    assert "flag shared_host: another trial ran (new single on h ×2)" in remarks
    remarks = comparison_remarks(compared([10.0, 10.1], [20.0, 20.1], VOID, FLAG))
    assert "void by short_output: 10 of 500 tokens (new single on h ×2)" in remarks
    run = replace(launch("new", 1, 20.0).run, gates=(FLAG, VOID))
    assert run_text(run, JobSummary()) == "single voided by short_output"
