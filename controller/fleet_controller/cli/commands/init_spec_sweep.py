"""Implements `fleetctl init --spec-sweep`: makes a job file that sweeps speculative decoding."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from fleet_controller.cli.output_files import write_output_file
from fleet_controller.cli.terminal.console import Console
from fleet_controller.importers.sweep_job import sweep_job
from fleet_knowledge.sglang.speculation.sweep_notation import (
    SweepPoint,
    distinct_servers,
    expand_sweep,
    split_entries,
)
from fleet_protos.errors import ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print the job file or write it to `-o`, and print remarks on entries to standard error.

    Return USAGE_ERROR when there is no entry or an entry is wrong.
    """
    points = expand_sweep(split_entries(arguments.spec_sweep))
    wrong = not points or any(point.is_invalid for point in points)
    text = "" if wrong else sweep_job(points)
    if text and arguments.output:
        write_output_file(arguments.output, text, overwrite=arguments.force)
    if arguments.json:
        console.print_json(
            {
                "version": 1,
                "expanded": [point.to_json() for point in points],
                "servers": len(distinct_servers(points)),
                "job_file": text,
            }
        )
    else:
        if not arguments.output:
            console.print_text(text)
        console.print_stderr(*_point_lines(points))
    if text and arguments.output:
        console.print_stderr(
            f"wrote {arguments.output}",
            f"next: fill in the marked places, then run: fleetctl lint {arguments.output}",
        )
    return ExitCode.USAGE_ERROR if wrong else ExitCode.DONE


def _point_lines(points: Sequence[SweepPoint]) -> Iterator[str]:
    if not points:
        yield (
            "the sweep has no entries: write them as 1,0,0,0 1,3,1,4"
            " (batch size, steps, topk, draft tokens)"
        )
    for point in points:
        if point.adjusted_from is not None:
            yield (
                f"{point.text}: SGLang runs {point.draft_tokens} draft tokens,"
                f" not {point.adjusted_from} (with topk 1 they are steps + 1)"
            )
        if point.duplicate_of is not None:
            yield f"{point.text}: the same as {points[point.duplicate_of].text}, launched once"
        if point.verdict:
            yield f"{point.text}: {point.verdict}"
