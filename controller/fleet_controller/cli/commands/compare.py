"""Implements `fleetctl compare`: prints verdicts on a job, two jobs or a CSV file."""

from __future__ import annotations

import argparse

from fleet_controller.analysis.compare_runs import compare
from fleet_controller.analysis.comparison_values import Comparison
from fleet_controller.analysis.csv_runs import parse_csv_runs
from fleet_controller.analysis.verdict import Question, Verdict
from fleet_controller.cli.input_files import read_text
from fleet_controller.cli.job_comparison import compare_stored, print_comparison
from fleet_controller.cli.terminal.console import Console
from fleet_controller.yaml.findings import ERROR, Finding, JobRejected
from fleet_protos.errors import ConfigError, ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print the verdict table. Return FAILED if a row is SLOWER under `--fail-on slower`.

    Raises ConfigError for wrong options. Raises JobRejected with all bad rows of a CSV file.
    """
    if bool(arguments.csv) == bool(arguments.a):
        raise ConfigError(
            "compare needs either a job or --csv",
            "fleetctl compare JOB [OTHER_JOB], or fleetctl compare --csv FILE",
        )
    if arguments.csv:
        comparison = compare_csv(arguments.csv, arguments)
    else:
        comparison = compare_stored(arguments)
    print_comparison(comparison, arguments.json, console)
    slower = any(row.verdict == Verdict.SLOWER for row in comparison.rows)
    return ExitCode.FAILED if arguments.fail_on and slower else ExitCode.DONE


def compare_csv(file: str, arguments: argparse.Namespace) -> Comparison:
    """Compare the numbers of a CSV file. Without `--baseline`, its first variant is the baseline.

    Raises JobRejected with all bad rows.
    """
    numbers = parse_csv_runs(read_text(file))
    if numbers.findings:
        raise JobRejected(
            Finding(bad.code, ERROR, file, bad.line, bad.column, bad.key, bad.message, bad.hint)
            for bad in numbers.findings
        )
    baseline = arguments.baseline or numbers.runs[0].variant
    default_question = Question()
    confidence = (
        default_question.confidence if arguments.confidence is None else arguments.confidence
    )
    margin = default_question.margin if arguments.margin is None else arguments.margin
    return compare(numbers.runs, baseline, confidence, margin)
