"""Adds the options of `compare` and `report`, which decide what is judged and how."""

from __future__ import annotations

import argparse

from fleet_protos.metric_names import HIGHER_IS_BETTER


def percentage(text: str) -> float:
    """Convert `95%`, `95 %` or `0.95` to a share of 1. Raises ArgumentTypeError for argparse."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a percentage: write for example 95%"
        ) from None
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not between 0% and 100%: write for example 95%"
        )
    return value


def verdict_options(command: argparse.ArgumentParser) -> None:
    """Add the options that `compare` and `report` share."""
    command.add_argument(
        "--baseline",
        default="",
        metavar="VARIANT",
        help="compare with this variant (default: the job's baseline)",
    )
    command.add_argument(
        "--confidence",
        type=percentage,
        default=None,
        metavar="P",
        help="confidence of every interval (default: the job's, else 95%%)",
    )
    command.add_argument(
        "--margin",
        type=percentage,
        default=None,
        metavar="P",
        help="differences below this do not matter (default: the job's, else 2%%)",
    )


def regression_rule(text: str) -> tuple[str, float]:
    """Read the rule of `--fail-on`: (`slower` or `unproved`, tolerance as a share of 1).

    Raises ArgumentTypeError for argparse.
    """
    kind, colon, tolerance = text.partition(":")
    if kind not in ("slower", "unproved") or (kind == "unproved" and not colon):
        raise argparse.ArgumentTypeError(f"{text!r}: write slower, slower:3% or unproved:3%")
    return kind, percentage(tolerance) if colon else 0.0


def compare_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `compare`."""
    command.add_argument(
        "a", nargs="?", metavar="A", help="job id: compare its variants with its baseline"
    )
    command.add_argument(
        "b",
        nargs="?",
        metavar="B",
        help="another job id: compare each variant of B with the same variant of A",
    )
    command.add_argument(
        "--csv",
        metavar="FILE",
        help="compare your own numbers, in the columns"
        " variant,launch,value[,host,workload,metric,block]",
    )
    command.add_argument(
        "--old",
        nargs="+",
        default=[],
        metavar="JOB",
        help="with --new: at least three jobs before a change",
    )
    command.add_argument(
        "--new", nargs="+", default=[], metavar="JOB", help="at least three jobs after it"
    )
    command.add_argument(
        "--metric",
        nargs="+",
        choices=sorted(HIGHER_IS_BETTER),
        default=[],
        metavar="M",
        help="judge these metrics (default: those of the job file)",
    )
    command.add_argument(
        "--fail-on",
        type=regression_rule,
        default=None,
        metavar="RULE",
        help="exit with 1 on: slower (any verdict), slower:3%% (certainly more than 3%% slower), "
        "unproved:3%% (not certainly within 3%%)",
    )
    verdict_options(command)


def report_options(command: argparse.ArgumentParser) -> None:
    """Add the options of `report`."""
    command.add_argument(
        "--format", choices=("csv", "json", "md"), default="md", help="output format (default: md)"
    )
    command.add_argument(
        "-o",
        "--output",
        default="",
        metavar="FILE",
        help="write to this file instead of standard output",
    )
    verdict_options(command)
