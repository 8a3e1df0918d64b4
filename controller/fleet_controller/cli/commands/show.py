"""Implements `fleetctl show`: prints a job and its trials."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from fleet_controller.cli.controller_connection import open_controller
from fleet_controller.cli.terminal.console import Console
from fleet_controller.core.controller_api import StoredRun
from fleet_controller.report.failure_causes import cause_lines, first_of_each_class
from fleet_controller.report.job_output import (
    job_heading,
    kept_out_table,
    show_json,
    trials_table,
)
from fleet_controller.report.search_output import BY_LAUNCH, BY_LOAD, limits_table, loads_table
from fleet_controller.report.terminal_layout import table_text
from fleet_protos.errors import ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print one job."""
    asyncio.run(_show(arguments, console))
    return ExitCode.DONE


async def _show(arguments: argparse.Namespace, console: Console) -> None:
    async with open_controller(arguments) as controller:
        detail = await controller.job(arguments.job)
        runs = (await controller.results(arguments.job)).runs
        if arguments.json:
            console.print_json(show_json(detail, runs))
            return
        console.print_lines([job_heading(detail.job), ""])
        console.print_text(table_text(trials_table(detail.trials), console.width, console.colour))
        _print_searches(runs, console)
        kept_out = kept_out_table(runs)
        if kept_out.rows:
            console.print_lines(["", "runs that are stored but not used in any number:"])
            console.print_text(table_text(kept_out, console.width, console.colour))
        for trial in first_of_each_class(detail.trials):
            newest = await controller.trial(trial.trial_id, trial.attempt, False)
            if cause := cause_lines(newest.events):
                heading = f"{trial.failure_class}, first in {trial.trial_id}:"
                console.print_lines(["", heading, *(f"  {line}" for line in cause)])


def _print_searches(runs: Sequence[StoredRun], console: Console) -> None:
    limits, loads = limits_table(runs), loads_table(runs)
    if limits.rows:
        console.print_lines(["", f"{BY_LAUNCH}:"])
        console.print_text(table_text(limits, console.width, console.colour))
        console.print_lines(["", f"{BY_LOAD}:"])
        console.print_text(table_text(loads, console.width, console.colour))
