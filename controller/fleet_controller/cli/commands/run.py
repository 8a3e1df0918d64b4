"""Implements `fleetctl run`: runs a job on this machine and prints its verdicts."""

from __future__ import annotations

import argparse
import asyncio

from fleet_controller.cli.controller_connection import open_stored_jobs
from fleet_controller.cli.job_loading import load_and_prune
from fleet_controller.cli.local_controller import local_agent, local_machine
from fleet_controller.cli.local_run import run_to_verdict
from fleet_controller.cli.missing_extras import require_agent_extra
from fleet_controller.cli.state_folder import StateFolder
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.finding_lines import finding_lines
from fleet_controller.core.controller_api import Controller, is_job_over
from fleet_controller.job_file.job_loader import LoadedJob
from fleet_protos.errors import Conflict


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run a job to its verdicts and return the exit code."""
    require_agent_extra()
    return asyncio.run(_run(arguments, console))


async def _run(arguments: argparse.Namespace, console: Console) -> int:
    loaded, _ = load_and_prune(arguments, console)
    console.print_stderr(*finding_lines(loaded.findings, console))
    this_machine = local_machine(arguments)
    agent = local_agent(this_machine)
    await _reject_duplicate_job(this_machine.state_folder, loaded)

    async def submit(controller: Controller) -> str:
        return await controller.submit(loaded.text, loaded.file_name)

    return await run_to_verdict(submit, agent, this_machine, arguments.json, console)


async def _reject_duplicate_job(state_folder: StateFolder, loaded: LoadedJob) -> None:
    """Raise Conflict if an unfinished job was submitted with the same text."""
    if not state_folder.store.exists():
        return
    with open_stored_jobs(state_folder) as jobs:
        for job in await jobs.jobs():
            if not is_job_over(job) and (await jobs.job(job.job_id)).yaml == loaded.text:
                raise Conflict(
                    f"job {job.job_id} with the same content is unfinished:"
                    f" {job.trials_over} of {job.trials} trials have ended",
                    f"`fleetctl resume {job.job_id}` continues it;"
                    f" `fleetctl cancel {job.job_id}` cancels it",
                )
