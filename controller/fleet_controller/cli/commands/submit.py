"""Implements `fleetctl submit`: submits a job to the controller."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence

from fleet_controller.cli.commands.plan import cost_text, plan_for_fleet
from fleet_controller.cli.controller_connection import open_controller
from fleet_controller.cli.fleet_file_option import read_fleet
from fleet_controller.cli.follow_job import watch_to_verdict
from fleet_controller.cli.job_loading import load_and_prune
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.finding_lines import finding_lines
from fleet_controller.core.controller_api import HostStatus, JobDetail
from fleet_controller.core.job import Job
from fleet_controller.fleet_file.find_fleet_file import find_fleet_file
from fleet_controller.planning.cost import estimate_cost
from fleet_protos.errors import ExitCode

_MAX_LISTED = 10


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Submit a job and return the exit code. With `--watch`, first follow the job to its end."""
    return asyncio.run(_submit(arguments, console))


async def _submit(arguments: argparse.Namespace, console: Console) -> int:
    loaded, _ = load_and_prune(
        arguments, console
    )  # all mistakes show before the controller is asked
    console.print_stderr(*finding_lines(loaded.findings, console))
    async with open_controller(arguments, must_run=True) as controller:
        job_id = await controller.submit(loaded.text, loaded.file_name, arguments.only_connected)
        console.print_stderr(
            *waiting_lines(await controller.hosts(), await controller.job(job_id)),
            *_cost_lines(loaded.job, arguments),
        )
        if arguments.watch:
            console.print_stderr(f"job {job_id}")
            return await watch_to_verdict(controller, job_id, arguments.json, console)
        trials = (await controller.job(job_id)).job.trials
    if arguments.json:
        console.print_json({"version": 1, "job": job_id, "trials": trials})
    else:
        console.print_lines(
            [f"job {job_id}: {trials} trials; `fleetctl watch {job_id}` follows it"]
        )
    return ExitCode.DONE


def waiting_lines(hosts: Sequence[HostStatus], detail: JobDetail) -> list[str]:
    """Return a heading and a line for each host of the job that is not connected. At most ten hosts
    get a line.
    """
    counts = Counter(host for trial in detail.trials for host in {trial.host, *trial.nodes})
    missing = [host for host in hosts if host.state != "connected" and counts[host.host]]
    if not missing:
        return []
    count = sum(counts[host.host] for host in missing)
    lines = [
        f"{len(missing)} of {len([host for host in counts if host])} hosts do not answer now;"
        f" {count} trials wait for them:"
    ]
    lines += [f"  {host.host}: {host.message}" for host in missing[:_MAX_LISTED]]
    lines += [f"  and {len(missing) - _MAX_LISTED} more"] if len(missing) > _MAX_LISTED else []
    return [*lines, "  --only-connected leaves such hosts out"]


def _cost_lines(job: Job, arguments: argparse.Namespace) -> list[str]:
    """Return the cost at the prices of the local fleet file. The controller's file may have other
    prices.
    """
    path = find_fleet_file(arguments.fleet)
    if path is None:
        return []
    fleet = read_fleet(path)
    cost = estimate_cost(plan_for_fleet(job, fleet), job, fleet)
    return [f"estimated cost at the prices in {path}: {cost_text(cost)}"] if cost else []
