"""Runs one job to its verdicts with a controller and an agent on this machine, for `run` and
`resume`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from fleet_controller.app.controller import FleetController
from fleet_controller.app.local_agent import LocalAgent
from fleet_controller.cli.follow_job import JobOutcome, fetch_outcome, follow_job, print_outcome
from fleet_controller.cli.local_controller import LocalMachine, run_local_controller
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.interrupts import Interrupts
from fleet_controller.cli.terminal.live_display import ProgressDisplay, progress_display
from fleet_controller.core.controller_api import Controller, is_job_over
from fleet_protos.errors import ExitCode

_POLL_S = 1.0
StartJob = Callable[[Controller], Awaitable[str]]


async def run_to_verdict(
    start_job: StartJob,
    agent: LocalAgent,
    this_machine: LocalMachine,
    as_json: bool,
    console: Console,
    job_id: str = "",
) -> int:
    """Start a job on this machine, follow it, print its verdicts and return the exit code.

    `start_job` gets the controller and returns the job id; `job_id` names a job that is stored
    already. Other jobs of the state folder stay as they are. The first Ctrl-C stops the servers
    and leaves the job unfinished, so that `resume` continues it.
    """
    with progress_display() as display:
        interrupts = Interrupts(lambda: exit_at_once(agent, display))
        with interrupts.handle_signals():
            async with run_local_controller(
                agent, this_machine, display.print_line, job_id
            ) as running:
                outcome = await _follow_until_over(start_job, running.fleet, interrupts, display)
    code = print_outcome(outcome, as_json, console)
    console.print_stderr(
        f"job {outcome.detail.job.job_id}: its data is in {this_machine.state_folder.path}"
    )
    return code


async def _follow_until_over(
    start_job: StartJob,
    controller: FleetController,
    interrupts: Interrupts,
    display: ProgressDisplay,
) -> JobOutcome:
    if interrupts.stop_requested.is_set():
        raise KeyboardInterrupt
    job_id = await start_job(controller)
    job = (await controller.job(job_id)).job
    display.print_line(f"job {job_id}: {job.trials} trials, of which {job.trials_over} have ended")
    for other in await controller.jobs():
        if not is_job_over(other) and other.job_id != job_id:
            display.print_line(
                f"job {other.job_id} is unfinished too and waits;"
                f" `fleetctl resume {other.job_id}` continues it later,"
                f" `fleetctl cancel {other.job_id}` cancels it"
            )
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(follow_job(controller, job_id, display))
        background = [
            tasks.create_task(interrupts.stop_requested.wait()),
            tasks.create_task(report_host_problems(controller, display.print_line)),
        ]
        await asyncio.wait((following, background[0]), return_when=asyncio.FIRST_COMPLETED)
        if not following.done():
            display.print_line(
                f"interrupted: stopping the servers; `fleetctl resume {job_id}` continues the job"
                " later; press Ctrl-C again to leave at once"
            )
            await controller.interrupt()
        for task in (following, *background):
            task.cancel()
    return await fetch_outcome(controller, job_id)


async def report_host_problems(
    controller: Controller, print_line: Callable[[str], None], poll_s: float = _POLL_S
) -> None:
    """Print each problem of a host once, until cancelled.

    Hosts are polled every `poll_s` seconds. A problem is printed if two polls in a row see it. A
    problem that passes sooner, such as an agent's restart, needs no action by the user.
    """
    before: dict[str, str] = {}
    reported: dict[str, str] = {}
    while True:
        now = {host.host: host.message for host in await controller.hosts() if host.message}
        for host, message in now.items():
            if before.get(host) == message and reported.get(host) != message:
                reported[host] = message
                print_line(f"host {host}: {message}; the job waits for this host")
        before = now
        await asyncio.sleep(poll_s)


def exit_at_once(agent: LocalAgent, display: ProgressDisplay) -> None:
    """Handle the second Ctrl-C: ask the agent to stop and end this process without waiting."""
    agent.request_stop()
    display.close()
    display.print_line(
        f"leaving at once: the local agent (pid {agent.pid}) is still stopping its servers;"
        f" its log is {agent.config.log}"
    )
    os._exit(ExitCode.FAILED)
