"""Owns `fleetctl ls` and `show`: ask the controller once, print. Follows nothing."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fleet_controller.cli.controller_connection import controller_address, open_controller
from fleet_controller.cli.state_folder import resolve_state_folder
from fleet_controller.cli.terminal.console import Console
from fleet_controller.core.controller_api import Controller, JobSummary, StoredRun
from fleet_controller.report.failure_causes import cause_lines, first_of_each_class
from fleet_controller.report.job_output import (
    job_heading,
    jobs_json,
    jobs_table,
    kept_out_table,
    show_json,
    trials_table,
)
from fleet_controller.report.search_output import BY_LAUNCH, BY_LOAD, limits_table, loads_table
from fleet_controller.report.terminal_layout import table_text
from fleet_protos.errors import ExitCode

JobAction = Callable[[Controller, argparse.Namespace, Console], Awaitable[None]]


def run(arguments: argparse.Namespace, console: Console) -> int:
    """One of the two, by name."""
    state_folder = resolve_state_folder(arguments.state)
    if (
        arguments.command == "ls"
        and not controller_address(arguments.controller, state_folder)
        and not state_folder.store.exists()
    ):
        _print_jobs((), arguments, console)
        return ExitCode.DONE
    return asyncio.run(_run(_JOB_ACTIONS[arguments.command], arguments, console))


async def _run(action: JobAction, arguments: argparse.Namespace, console: Console) -> int:
    async with open_controller(arguments) as controller:
        await action(controller, arguments, console)
    return ExitCode.DONE


async def _ls(controller: Controller, arguments: argparse.Namespace, console: Console) -> None:
    _print_jobs(await controller.jobs(), arguments, console)


def _print_jobs(
    jobs: Sequence[JobSummary], arguments: argparse.Namespace, console: Console
) -> None:
    if arguments.json:
        console.print_json(jobs_json(jobs))
    elif jobs:
        console.print_text(table_text(jobs_table(jobs), console.width, console.colour))
    else:
        console.print_stderr("no jobs yet: fleetctl run JOB starts one")


async def _show(controller: Controller, arguments: argparse.Namespace, console: Console) -> None:
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
        console.print_lines(["", "kept, and part of no number:"])
        console.print_text(table_text(kept_out, console.width, console.colour))
    for trial in first_of_each_class(detail.trials):
        cause = cause_lines((await controller.trial(trial.trial_id, trial.attempt, False)).events)
        console.print_lines(
            [
                "",
                f"{trial.failure_class}, first in {trial.trial_id}:",
                *(f"  {line}" for line in cause),
            ]
            if cause
            else []
        )


def _print_searches(runs: Sequence[StoredRun], console: Console) -> None:
    limits, loads = limits_table(runs), loads_table(runs)
    if limits.rows:
        console.print_lines(["", f"{BY_LAUNCH}:"])
        console.print_text(table_text(limits, console.width, console.colour))
        console.print_lines(["", f"{BY_LOAD}:"])
        console.print_text(table_text(loads, console.width, console.colour))


_JOB_ACTIONS: dict[str, JobAction] = {"ls": _ls, "show": _show}
