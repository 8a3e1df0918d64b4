"""Owns `fleetctl report`: the verdict table in a form that other programs take. Computes nothing."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fleet_controller.analysis.compare_runs import Comparison
from fleet_controller.cli.controller_connection import connected
from fleet_controller.cli.job_comparison import asked, compare_job
from fleet_controller.cli.terminal.console import Console
from fleet_controller.core.controller_api import StoredRun
from fleet_controller.report.comparison_output import csv_of, json_of, markdown_of
from fleet_controller.report.search_output import searches_markdown
from fleet_protos.errors import ConfigError, ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Write the report to a file or to standard output."""
    text = _FORMATS[arguments.format](*asyncio.run(_fetched(arguments)))
    if not arguments.output:
        console.text(text)
        return ExitCode.DONE
    try:
        Path(arguments.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {arguments.output}: {error.strerror}", "name a file that you may write") from error
    console.tell(f"wrote {arguments.output}")
    return ExitCode.DONE


async def _fetched(arguments: argparse.Namespace) -> tuple[Comparison, Sequence[StoredRun]]:
    async with connected(arguments) as controller:
        return await compare_job(controller, arguments.job, asked(arguments)), (await controller.results(arguments.job)).runs


def _csv(comparison: Comparison, runs: Sequence[StoredRun]) -> str:
    return csv_of(comparison)


def _markdown(comparison: Comparison, runs: Sequence[StoredRun]) -> str:
    return markdown_of(comparison) + searches_markdown(runs)


def _json(comparison: Comparison, runs: Sequence[StoredRun]) -> str:
    return json.dumps(json_of(comparison), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


_FORMATS: Mapping[str, Callable[[Comparison, Sequence[StoredRun]], str]] = {"csv": _csv, "json": _json, "md": _markdown}
