"""Implements `fleetctl watch`: follows a job until it is over and prints its verdicts."""

from __future__ import annotations

import argparse
import asyncio

from fleet_controller.cli.controller_connection import open_controller
from fleet_controller.cli.follow_job import watch_to_verdict
from fleet_controller.cli.terminal.console import Console


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Follow a job to its verdicts and return the exit code."""
    return asyncio.run(_watch(arguments, console))


async def _watch(arguments: argparse.Namespace, console: Console) -> int:
    async with open_controller(arguments) as controller:
        job_id = (await controller.job(arguments.job)).job.job_id
        return await watch_to_verdict(controller, job_id, arguments.json, console)
