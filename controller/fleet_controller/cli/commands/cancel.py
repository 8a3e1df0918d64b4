"""Implements `fleetctl cancel`. Asks the running controller to cancel a job. If none is running,
runs a controller until the job's servers have stopped.
"""

from __future__ import annotations

import argparse
import asyncio

from fleet_controller.cli.controller_connection import (
    controller_address,
    open_controller,
    open_stored_jobs,
)
from fleet_controller.cli.fleet_file_option import find_fleet_of_job
from fleet_controller.cli.state_folder import StateFolder, local_host_name, resolve_state_folder
from fleet_controller.cli.terminal.console import Console
from fleet_controller.core.controller_api import JobSummary, is_job_over
from fleet_controller.core.inventory import Inventory
from fleet_protos.errors import ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Cancel a job. Return DONE even if the job was already over."""
    job_id, trials_cancelled = asyncio.run(_cancel(arguments, console))
    if arguments.json:
        console.print_json({"version": 1, "job": job_id, "trials_cancelled": trials_cancelled})
    else:
        plural = "" if trials_cancelled == 1 else "s"
        console.print_lines(
            [
                f"job {job_id}: {trials_cancelled} trial{plural} cancelled"
                if trials_cancelled
                else f"job {job_id} is already over"
            ]
        )
    return ExitCode.DONE


async def _cancel(arguments: argparse.Namespace, console: Console) -> tuple[str, int]:
    state_folder = resolve_state_folder(arguments.state)
    if controller_address(arguments.controller, state_folder):
        async with open_controller(arguments) as controller:
            job = (await controller.job(arguments.job)).job
            return job.job_id, await controller.cancel(job.job_id)
    with open_stored_jobs(state_folder) as jobs:
        job = (await jobs.job(arguments.job)).job
    if not is_job_over(job):
        _mark_cancelled(state_folder, job)
        await _stop_running_trials(state_folder, job, arguments, console)
    return job.job_id, job.trials - job.trials_over


def _mark_cancelled(state_folder: StateFolder, job: JobSummary) -> None:
    """Mark the job as cancelled in the store, so that a controller starts no more of its trials."""
    from fleet_controller.store.file_lock import hold_lock
    from fleet_controller.store.store import Store

    with hold_lock(state_folder.lock):
        store = Store.open(str(state_folder.store))
        try:
            store.cancel_job(job.job_id)
        finally:
            store.close()


async def _stop_running_trials(
    state_folder: StateFolder, job: JobSummary, arguments: argparse.Namespace, console: Console
) -> None:
    """Run a controller until the job is over. If an earlier controller was killed, only the agents
    know which trials still run.
    """
    with open_stored_jobs(state_folder) as jobs:
        detail = await jobs.job(job.job_id)
    if is_job_over(detail.job):
        return
    fleet = find_fleet_of_job(detail, arguments.fleet)
    if fleet is not None:
        console.print_stderr(
            "no controller is running: starting one here to stop the job's servers on the hosts of"
            f" {fleet.file}"
        )
        await _stop_trials_on_hosts(state_folder, job, fleet, arguments)
        return
    from fleet_controller.cli.local_controller import (
        LocalMachine,
        local_agent,
        run_local_controller,
    )

    this_machine = LocalMachine(state_folder, local_host_name())
    async with run_local_controller(
        local_agent(this_machine), this_machine, console.print_stderr
    ) as running:
        async for _ in running.fleet.watch(job.job_id):
            pass


async def _stop_trials_on_hosts(
    state_folder: StateFolder, job: JobSummary, fleet: Inventory, arguments: argparse.Namespace
) -> None:
    from fleet_controller.app.bootstrap import start_controller
    from fleet_controller.hosts.target_access import fleet_targets
    from fleet_controller.pki.trust_path import trust_folder_path

    async with start_controller(
        state_folder.controller,
        fleet_targets((), fleet, trust_folder_path(arguments.trust, state_folder.path)),
    ) as running:
        async for _ in running.fleet.watch(job.job_id):
            pass
