"""Owns `fleetctl ls`, `show`, `cancel` and `hosts`: ask the controller once, print. Follows nothing."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fleet_protos.errors import ConfigError, ExitCode

from fleet_controller.cli.connect import connected, controller_address
from fleet_controller.cli.console import Console
from fleet_controller.cli.places import Places, places
from fleet_controller.report.jobs import hosts_json, hosts_table, job_heading, jobs_json, jobs_table, show_json, trials_table
from fleet_controller.report.screen import table_text
from fleet_controller.report.values import Controller, JobSummary

Verb = Callable[[Controller, argparse.Namespace, Console], Awaitable[None]]


def run(arguments: argparse.Namespace, console: Console) -> int:
    """One of the four, by name."""
    home = places(arguments.state)
    at_rest = not controller_address(arguments.controller, home)
    if at_rest and arguments.command == "ls" and not home.store.exists():
        _print_jobs((), arguments, console)
        return ExitCode.DONE
    if at_rest and arguments.command == "cancel":
        return _cancel_at_rest(home, arguments, console)
    return asyncio.run(_run(_VERBS[arguments.command], arguments, console))


async def _run(verb: Verb, arguments: argparse.Namespace, console: Console) -> int:
    async with connected(arguments) as controller:
        await verb(controller, arguments, console)
    return ExitCode.DONE


async def _ls(controller: Controller, arguments: argparse.Namespace, console: Console) -> None:
    _print_jobs(await controller.jobs(), arguments, console)


def _print_jobs(jobs: Sequence[JobSummary], arguments: argparse.Namespace, console: Console) -> None:
    if arguments.json:
        console.json(jobs_json(jobs))
    elif jobs:
        console.text(table_text(jobs_table(jobs), console.width, console.colour))
    else:
        console.tell("no jobs yet: fleetctl run JOB starts one")


async def _show(controller: Controller, arguments: argparse.Namespace, console: Console) -> None:
    detail = await controller.job(arguments.job)
    if arguments.json:
        console.json(show_json(detail))
        return
    console.lines([job_heading(detail.job), ""])
    console.text(table_text(trials_table(detail.trials), console.width, console.colour))


async def _cancel(controller: Controller, arguments: argparse.Namespace, console: Console) -> None:
    job = (await controller.job(arguments.job)).job
    _print_cancelled(job.job_id, await controller.cancel(job.job_id), arguments, console)


def _cancel_at_rest(home: Places, arguments: argparse.Namespace, console: Console) -> int:
    """No controller runs: note it in the store, so that none takes the job up again."""
    from fleet_controller.board import summary
    from fleet_controller.lock import held
    from fleet_controller.store.store import Store

    if not home.store.exists():
        raise ConfigError(f"there is no job {arguments.job!r}: nothing was ever run here", "`fleetctl run JOB` starts one")
    with held(home.lock):
        store = Store.open(str(home.store))
        try:
            row = store.find_job(arguments.job)
            job = summary(row, store.trials(row.job_id))
            if not job.is_over:
                store.cancel_job(row.job_id)
        finally:
            store.close()
    _print_cancelled(job.job_id, job.trials - job.trials_over, arguments, console)
    return ExitCode.DONE


def _print_cancelled(job_id: str, ended: int, arguments: argparse.Namespace, console: Console) -> None:
    if arguments.json:
        console.json({"version": 1, "job": job_id, "trials_cancelled": ended})
    else:
        console.lines([f"job {job_id}: {ended} trial{'' if ended == 1 else 's'} cancelled" if ended else f"job {job_id} is over already"])


async def _hosts(controller: Controller, arguments: argparse.Namespace, console: Console) -> None:
    hosts = await controller.hosts()
    if arguments.json:
        console.json(hosts_json(hosts))
    elif hosts:
        console.text(table_text(hosts_table(hosts), console.width, console.colour))
    else:
        console.tell("no hosts yet")


_VERBS: dict[str, Verb] = {"ls": _ls, "show": _show, "cancel": _cancel, "hosts": _hosts}
