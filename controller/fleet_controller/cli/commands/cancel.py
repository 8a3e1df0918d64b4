"""Owns `fleetctl cancel`: by the controller that runs the job, or with one for as long as it takes. Kills nothing itself."""

from __future__ import annotations

import argparse
import asyncio

from fleet_controller.cli.controller_connection import connected, controller_address, stored
from fleet_controller.cli.fleet_file_option import fleet_of_job
from fleet_controller.cli.state_folder import Places, host_name, places
from fleet_controller.cli.terminal.console import Console
from fleet_controller.core.controller_api import JobSummary
from fleet_controller.core.inventory import Inventory
from fleet_protos.errors import ExitCode


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Cancel a job; 0 too when it was over already."""
    job_id, ended = asyncio.run(_cancelled(arguments, console))
    if arguments.json:
        console.json({"version": 1, "job": job_id, "trials_cancelled": ended})
    else:
        console.lines([f"job {job_id}: {ended} trial{'' if ended == 1 else 's'} cancelled" if ended else f"job {job_id} is over already"])
    return ExitCode.DONE


async def _cancelled(arguments: argparse.Namespace, console: Console) -> tuple[str, int]:
    home = places(arguments.state)
    if controller_address(arguments.controller, home):
        async with connected(arguments) as controller:
            job = (await controller.job(arguments.job)).job
            return job.job_id, await controller.cancel(job.job_id)
    with stored(home) as jobs:
        job = (await jobs.job(arguments.job)).job
    if not job.is_over:
        _note(home, job)
        await _end_what_runs(home, job, arguments, console)
    return job.job_id, job.trials - job.trials_over


def _note(home: Places, job: JobSummary) -> None:
    """In the store first, so that no controller starts any more of it."""
    from fleet_controller.store.file_lock import held
    from fleet_controller.store.store import Store

    with held(home.lock):
        store = Store.open(str(home.store))
        try:
            store.cancel_job(job.job_id)
        finally:
            store.close()


async def _end_what_runs(home: Places, job: JobSummary, arguments: argparse.Namespace, console: Console) -> None:
    """A trial that was running when its controller was killed is known to its agent only: ask it, and see it end."""
    with stored(home) as jobs:
        detail = await jobs.job(job.job_id)
    if detail.job.is_over:
        return
    fleet = fleet_of_job(detail, arguments.fleet)
    if fleet is not None:
        console.tell(f"no controller runs: one here sees the servers on the hosts of {fleet.file} end")
        await _end_on_hosts(home, job, fleet, arguments)
        return
    from fleet_controller.cli.local_controller import Here, local_agent, machine

    place = Here(home, host_name())
    async with machine(local_agent(place), place, console.tell) as at_work:
        async for _ in at_work.fleet.watch(job.job_id):
            pass


async def _end_on_hosts(home: Places, job: JobSummary, fleet: Inventory, arguments: argparse.Namespace) -> None:
    from fleet_controller.app.bootstrap import working
    from fleet_controller.hosts.target_access import following
    from fleet_controller.pki.trust_path import trust_folder

    async with working(home.controller, following((), fleet, trust_folder(arguments.trust, home.state))) as at_work:
        async for _ in at_work.fleet.watch(job.job_id):
            pass
