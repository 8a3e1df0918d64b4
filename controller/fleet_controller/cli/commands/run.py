"""Owns `fleetctl run`, `resume` and `up`: one machine from a job file to its verdict, and what
Ctrl-C means there. Measures nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable

from fleet_controller.app.local_agent import LocalAgent
from fleet_controller.cli.commands.lint import finding_lines
from fleet_controller.cli.commands.watch import JobOutcome, fetch_outcome, follow_job, print_outcome
from fleet_controller.cli.controller_connection import open_stored_jobs
from fleet_controller.cli.fleet_file_option import find_fleet_of_job
from fleet_controller.cli.host_warnings import report_host_problems
from fleet_controller.cli.job_loading import load_and_prune
from fleet_controller.cli.local_controller import (
    LocalMachine,
    local_agent,
    local_machine,
    run_local_controller,
)
from fleet_controller.cli.missing_extras import require_agent_extra
from fleet_controller.cli.state_folder import StateFolder
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.interrupts import Interrupts
from fleet_controller.cli.terminal.live_display import ProgressDisplay, progress_display
from fleet_controller.core.controller_api import Controller
from fleet_controller.fleet_file.find_fleet_file import find_fleet_file
from fleet_controller.job_file.job_loader import LoadedJob
from fleet_protos.errors import Conflict, ExitCode

_CONNECT_POLLS = 200
_CONNECT_POLL_S = 0.05
StartJob = Callable[[Controller], Awaitable[str]]


def run(arguments: argparse.Namespace, console: Console) -> int:
    """One of the three, by name."""
    file = (
        find_fleet_file(arguments.fleet)
        if arguments.command == "up" and not arguments.local
        else None
    )
    if file is not None:
        from fleet_controller.cli.commands.up import run_fleet_controller

        return asyncio.run(run_fleet_controller(arguments, local_machine(arguments), file, console))
    require_agent_extra()
    return asyncio.run(
        {"run": _run, "resume": _resume, "up": _up}[arguments.command](arguments, console)
    )


async def _run(arguments: argparse.Namespace, console: Console) -> int:
    loaded, _ = load_and_prune(arguments, console)
    console.print_stderr(*finding_lines(loaded.findings, console))
    this_machine = local_machine(arguments)
    agent = local_agent(this_machine)
    await _reject_duplicate_job(this_machine.state_folder, loaded)

    async def begin(controller: Controller) -> str:
        return await controller.submit(loaded.text, loaded.file_name)

    return await _run_to_verdict(begin, agent, this_machine, arguments.json, console)


async def _resume(arguments: argparse.Namespace, console: Console) -> int:
    this_machine = local_machine(arguments)
    agent = local_agent(this_machine)
    with open_stored_jobs(this_machine.state_folder) as jobs:
        detail = await jobs.job(arguments.job)
    job = detail.job
    if job.is_over:
        raise Conflict(
            f"job {job.job_id} is over: {job.state}",
            f"fleetctl compare {job.job_id} shows its verdicts",
        )
    if fleet := find_fleet_of_job(detail, arguments.fleet):
        raise Conflict(
            f"job {job.job_id} is on hosts of {fleet.file}",
            "`fleetctl up` goes on with it; fleetctl watch follows it",
        )

    async def begin(controller: Controller) -> str:
        return job.job_id

    return await _run_to_verdict(begin, agent, this_machine, arguments.json, console)


async def _reject_duplicate_job(state_folder: StateFolder, loaded: LoadedJob) -> None:
    if not state_folder.store.exists():
        return
    with open_stored_jobs(state_folder) as jobs:
        for job in await jobs.jobs():
            if not job.is_over and (await jobs.job(job.job_id)).yaml == loaded.text:
                over = f"{job.trials_over} of {job.trials} trials over"
                hint = f"fleetctl resume {job.job_id} goes on with it; fleetctl cancel {job.job_id} ends it"
                raise Conflict(
                    f"a job with the same content is unfinished: {job.job_id}, {over}", hint
                )


async def _run_to_verdict(
    start_job: StartJob,
    agent: LocalAgent,
    this_machine: LocalMachine,
    as_json: bool,
    console: Console,
) -> int:
    with progress_display() as display:
        interrupts = Interrupts(lambda: _exit_at_once(agent, display))
        with interrupts.handle_signals():
            async with run_local_controller(agent, this_machine, display.print_line) as at_work:
                outcome = await _follow_until_over(start_job, at_work.fleet, interrupts, display)
    code = print_outcome(outcome, as_json, console)
    console.print_stderr(
        f"job {outcome.detail.job.job_id}, its data: {this_machine.state_folder.path}"
    )
    return code


async def _follow_until_over(
    start_job: StartJob, controller: Controller, interrupts: Interrupts, display: ProgressDisplay
) -> JobOutcome:
    job_id = await start_job(controller)
    job = (await controller.job(job_id)).job
    display.print_line(f"job {job_id}: {job.trials} trials, {job.trials_over} over")
    for other in await controller.jobs():
        if not other.is_over and other.job_id != job_id:
            display.print_line(
                f"job {other.job_id} is unfinished too and goes on as well; fleetctl cancel {other.job_id} ends it"
            )
    async with asyncio.TaskGroup() as tasks:
        background = [
            tasks.create_task(_cancel_on_interrupt(controller, job_id, interrupts, display)),
            tasks.create_task(report_host_problems(controller, display.print_line)),
        ]
        await follow_job(controller, job_id, display)
        for task in background:
            task.cancel()
    return await fetch_outcome(controller, job_id)


async def _cancel_on_interrupt(
    controller: Controller, job_id: str, interrupts: Interrupts, display: ProgressDisplay
) -> None:
    await interrupts.stop_requested.wait()
    display.print_line(
        "interrupted: cancelling the job and stopping its servers; Ctrl-C again leaves at once"
    )
    await controller.cancel(job_id)


def _exit_at_once(agent: LocalAgent, display: ProgressDisplay) -> None:
    """The second Ctrl-C: ask the agent to end, say what is left, and go without waiting for
    anything.
    """
    agent.request_stop()
    display.close()
    display.print_line(
        f"leaving at once: the local agent (pid {agent.pid}) is still stopping its servers; its log is {agent.config.log}"
    )
    os._exit(ExitCode.FAILED)


async def _up(arguments: argparse.Namespace, console: Console) -> int:
    this_machine = local_machine(arguments)
    agent = local_agent(this_machine)
    with progress_display() as display:
        interrupts = Interrupts(lambda: _exit_at_once(agent, display))
        with interrupts.handle_signals():
            async with run_local_controller(agent, this_machine, display.print_line) as at_work:
                await _wait_for_local_agent(at_work.fleet)
                console.print_stderr(
                    f"controller at {at_work.address}, local agent (pid {agent.pid}) as host {agent.config.host_name}",
                    "fleetctl submit FILE --watch hands it a job; Ctrl-C ends both",
                )
                await interrupts.stop_requested.wait()
                display.print_line("ending: servers are being stopped; Ctrl-C again leaves at once")
    console.print_stderr("ended; no server is left")
    return ExitCode.DONE


async def _wait_for_local_agent(controller: Controller) -> None:
    """Until the local agent is connected, so that the first submit finds it; what is wrong after
    that `fleetctl hosts` tells.
    """
    for _ in range(_CONNECT_POLLS):
        if all(host.state == "connected" for host in await controller.hosts()):
            return
        await asyncio.sleep(_CONNECT_POLL_S)
