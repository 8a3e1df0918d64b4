"""Implements `fleetctl ls`: lists jobs."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from fleet_controller.cli.controller_connection import controller_address, open_controller
from fleet_controller.cli.state_folder import resolve_state_folder
from fleet_controller.cli.terminal.console import Console
from fleet_controller.core.controller_api import JobSummary
from fleet_controller.report.job_output import jobs_json, jobs_table
from fleet_controller.report.terminal_layout import table_text
from fleet_protos.errors import ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Print all jobs. A state folder that was never used has no jobs."""
    state_folder = resolve_state_folder(arguments.state)
    is_unused = (
        not controller_address(arguments.controller, state_folder)
        and not state_folder.store.exists()
        and not state_folder.store_lock.exists()
    )
    jobs = () if is_unused else asyncio.run(_fetch_jobs(arguments))
    if arguments.json:
        console.print_json(jobs_json(jobs))
    elif jobs:
        console.print_text(table_text(jobs_table(jobs), console.width, console.colour))
    else:
        console.print_stderr("no jobs yet: `fleetctl run FILE` starts one")
    return ExitCode.DONE


async def _fetch_jobs(arguments: argparse.Namespace) -> Sequence[JobSummary]:
    async with open_controller(arguments) as controller:
        return await controller.jobs()
