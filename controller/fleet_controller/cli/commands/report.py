"""Implements `fleetctl report`: writes the verdict table as CSV, JSON or Markdown."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping, Sequence

from fleet_controller.analysis.comparison_values import Comparison
from fleet_controller.cli.controller_connection import open_controller
from fleet_controller.cli.job_comparison import compare_job, read_verdict_options
from fleet_controller.cli.output_files import write_output_file
from fleet_controller.cli.terminal.console import Console
from fleet_controller.core.controller_api import StoredRun
from fleet_controller.report.comparison_export import (
    comparison_csv,
    comparison_json,
    comparison_markdown,
)
from fleet_controller.report.search_output import searches_markdown
from fleet_protos.errors import ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Write the report to `-o` or to standard output."""
    text = _FORMATS[arguments.format](*asyncio.run(_fetch(arguments)))
    if not arguments.output:
        console.print_text(text)
        return ExitCode.DONE
    write_output_file(arguments.output, text, overwrite=True)
    console.print_stderr(f"wrote {arguments.output}")
    return ExitCode.DONE


async def _fetch(arguments: argparse.Namespace) -> tuple[Comparison, Sequence[StoredRun]]:
    async with open_controller(arguments) as controller:
        return await compare_job(controller, arguments.job, read_verdict_options(arguments)), (
            await controller.results(arguments.job)
        ).runs


def _csv(comparison: Comparison, runs: Sequence[StoredRun]) -> str:
    return comparison_csv(comparison)


def _markdown(comparison: Comparison, runs: Sequence[StoredRun]) -> str:
    return comparison_markdown(comparison) + searches_markdown(runs)


def _json(comparison: Comparison, runs: Sequence[StoredRun]) -> str:
    return (
        json.dumps(comparison_json(comparison), indent=2, ensure_ascii=False, allow_nan=False)
        + "\n"
    )


_FORMATS: Mapping[str, Callable[[Comparison, Sequence[StoredRun]], str]] = {
    "csv": _csv,
    "json": _json,
    "md": _markdown,
}
