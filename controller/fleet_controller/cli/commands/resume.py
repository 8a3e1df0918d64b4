"""Implements `fleetctl resume`: continues an interrupted job of this machine."""

from __future__ import annotations

import argparse
import asyncio

from fleet_controller.cli.controller_connection import open_stored_jobs
from fleet_controller.cli.fleet_file_option import find_fleet_of_job
from fleet_controller.cli.local_controller import local_agent, local_machine
from fleet_controller.cli.local_run import run_to_verdict
from fleet_controller.cli.missing_extras import require_agent_extra
from fleet_controller.cli.terminal.console import Console
from fleet_controller.core.controller_api import Controller, is_job_over
from fleet_protos.errors import Conflict


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Continue a job to its verdicts and return the exit code.

    Raises Conflict when the job is over, or belongs to the hosts of a fleet file.
    """
    require_agent_extra()
    return asyncio.run(_resume(arguments, console))


async def _resume(arguments: argparse.Namespace, console: Console) -> int:
    this_machine = local_machine(arguments)
    agent = local_agent(this_machine)
    with open_stored_jobs(this_machine.state_folder) as jobs:
        detail = await jobs.job(arguments.job)
    job = detail.job
    if is_job_over(job):
        raise Conflict(
            f"job {job.job_id} is already over: its state is {job.state}",
            f"`fleetctl compare {job.job_id}` prints its verdicts",
        )
    if fleet := find_fleet_of_job(detail, arguments.fleet):
        raise Conflict(
            f"job {job.job_id} belongs to hosts of {fleet.file}",
            f"`fleetctl up` continues it; `fleetctl watch {job.job_id}` follows it",
        )

    async def job_id(_: Controller) -> str:
        return job.job_id  # a controller continues the unfinished jobs of its store

    return await run_to_verdict(job_id, agent, this_machine, arguments.json, console, job.job_id)
