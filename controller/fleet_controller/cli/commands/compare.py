"""Implements `fleetctl compare`: prints verdicts on a job, two jobs or a CSV file."""

from __future__ import annotations

import argparse

from fleet_controller.analysis.compare_runs import compare
from fleet_controller.analysis.comparison_values import Comparison, ComparisonConditions
from fleet_controller.analysis.csv_runs import parse_csv_runs
from fleet_controller.analysis.regression_rule import RegressionRule
from fleet_controller.analysis.verdict import Question
from fleet_controller.cli.input_files import read_text
from fleet_controller.cli.job_comparison import compare_stored, print_comparison
from fleet_controller.cli.terminal.console import Console
from fleet_controller.report.comparison_output import metric_words, row_place
from fleet_controller.yaml.findings import ERROR, Finding, JobRejected
from fleet_protos.errors import ConfigError, ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print the verdict table. Return FAILED if a row fails the rule of `--fail-on`.

    Raises ConfigError for wrong options. Raises JobRejected with all bad rows of a CSV file.
    """
    sources = [arguments.csv, arguments.a, arguments.old or arguments.new]
    if sum(map(bool, sources)) != 1 or bool(arguments.old) != bool(arguments.new):
        raise ConfigError(
            "compare needs jobs or --csv",
            "fleetctl compare JOB [OTHER_JOB], fleetctl compare --old JOBS --new JOBS, "
            "or fleetctl compare --csv FILE",
        )
    if arguments.csv:
        comparison = compare_csv(arguments.csv, arguments)
    else:
        comparison = compare_stored(arguments)
    print_comparison(comparison, arguments.json, console)
    if arguments.fail_on is None:
        return ExitCode.DONE
    rule = RegressionRule(*arguments.fail_on)
    failing = rule.failing(comparison)
    for row in () if arguments.json else failing:
        name = f"{row_place(row)}, {metric_words(row.metric)[0]}"
        console.print_text(f"--fail-on: {name} is {rule.describe()}")
    return ExitCode.FAILED if failing else ExitCode.DONE


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
    workloads = {stored.run.workload for stored in numbers.runs}
    judged = dict.fromkeys(workloads, tuple(arguments.metric)) if arguments.metric else {}
    conditions = ComparisonConditions(judged=judged)
    return compare(numbers.runs, baseline, confidence, margin, conditions)
