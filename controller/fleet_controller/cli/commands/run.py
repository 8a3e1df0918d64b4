"""Owns `fleetctl run`, `resume` and `up`: one machine from a job file to its verdict, and what Ctrl-C means there. Measures nothing."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable

from fleet_controller.app.local_agent import LocalAgent
from fleet_controller.cli.commands.lint import finding_lines
from fleet_controller.cli.commands.watch import Ending, ending, follow, print_ending
from fleet_controller.cli.controller_connection import stored
from fleet_controller.cli.fleet_file_option import fleet_of_job
from fleet_controller.cli.host_warnings import tell_trouble
from fleet_controller.cli.job_loading import load_for
from fleet_controller.cli.local_controller import Here, here, local_agent, machine
from fleet_controller.cli.missing_extras import need_the_agent
from fleet_controller.cli.state_folder import Places
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.interrupts import Interrupts
from fleet_controller.cli.terminal.live_display import Display, progress_display
from fleet_controller.core.controller_api import Controller
from fleet_controller.fleet_file.find_fleet_file import fleet_path
from fleet_controller.job_file.job_loader import LoadedJob
from fleet_protos.errors import Conflict, ExitCode

_FIRST_LOOKS = 200
_LOOK_AGAIN_S = 0.05
Begin = Callable[[Controller], Awaitable[str]]


def run(arguments: argparse.Namespace, console: Console) -> int:
    """One of the three, by name."""
    file = fleet_path(arguments.fleet) if arguments.command == "up" and not arguments.local else None
    if file is not None:
        from fleet_controller.cli.commands.up import up

        return asyncio.run(up(arguments, here(arguments), file, console))
    need_the_agent()
    return asyncio.run({"run": _run, "resume": _resume, "up": _up}[arguments.command](arguments, console))


async def _run(arguments: argparse.Namespace, console: Console) -> int:
    loaded, _ = load_for(arguments, console)
    console.tell(*finding_lines(loaded.findings, console))
    place = here(arguments)
    agent = local_agent(place)
    await _refuse_a_second(place.home, loaded)

    async def begin(controller: Controller) -> str:
        return await controller.submit(loaded.text, loaded.file_name)

    return await _to_the_verdict(begin, agent, place, arguments.json, console)


async def _resume(arguments: argparse.Namespace, console: Console) -> int:
    place = here(arguments)
    agent = local_agent(place)
    with stored(place.home) as jobs:
        detail = await jobs.job(arguments.job)
    job = detail.job
    if job.is_over:
        raise Conflict(f"job {job.job_id} is over: {job.state}", f"fleetctl compare {job.job_id} shows its verdicts")
    if fleet := fleet_of_job(detail, arguments.fleet):
        raise Conflict(f"job {job.job_id} is on hosts of {fleet.file}", "`fleetctl up` goes on with it; fleetctl watch follows it")

    async def begin(controller: Controller) -> str:
        return job.job_id

    return await _to_the_verdict(begin, agent, place, arguments.json, console)


async def _refuse_a_second(home: Places, loaded: LoadedJob) -> None:
    if not home.store.exists():
        return
    with stored(home) as jobs:
        for job in await jobs.jobs():
            if not job.is_over and (await jobs.job(job.job_id)).yaml == loaded.text:
                over = f"{job.trials_over} of {job.trials} trials over"
                hint = f"fleetctl resume {job.job_id} goes on with it; fleetctl cancel {job.job_id} ends it"
                raise Conflict(f"a job with the same content is unfinished: {job.job_id}, {over}", hint)


async def _to_the_verdict(begin: Begin, agent: LocalAgent, place: Here, as_json: bool, console: Console) -> int:
    with progress_display() as shown:
        interrupts = Interrupts(lambda: _leave(agent, shown))
        with interrupts.installed():
            async with machine(agent, place, shown.say) as at_work:
                end = await _measured(begin, at_work.fleet, interrupts, shown)
    code = print_ending(end, as_json, console)
    console.tell(f"job {end.detail.job.job_id}, its data: {place.home.state}")
    return code


async def _measured(begin: Begin, controller: Controller, interrupts: Interrupts, shown: Display) -> Ending:
    job_id = await begin(controller)
    job = (await controller.job(job_id)).job
    shown.say(f"job {job_id}: {job.trials} trials, {job.trials_over} over")
    for other in await controller.jobs():
        if not other.is_over and other.job_id != job_id:
            shown.say(f"job {other.job_id} is unfinished too and goes on as well; fleetctl cancel {other.job_id} ends it")
    async with asyncio.TaskGroup() as tasks:
        beside = [
            tasks.create_task(_cancel_when_asked(controller, job_id, interrupts, shown)),
            tasks.create_task(tell_trouble(controller, shown.say)),
        ]
        await follow(controller, job_id, shown)
        for task in beside:
            task.cancel()
    return await ending(controller, job_id)


async def _cancel_when_asked(controller: Controller, job_id: str, interrupts: Interrupts, shown: Display) -> None:
    await interrupts.asked.wait()
    shown.say("interrupted: cancelling the job and stopping its servers; Ctrl-C again leaves at once")
    await controller.cancel(job_id)


def _leave(agent: LocalAgent, shown: Display) -> None:
    """The second Ctrl-C: ask the agent to end, say what is left, and go without waiting for anything."""
    agent.hang_up()
    shown.end()
    shown.say(f"leaving at once: the local agent (pid {agent.pid}) is still stopping its servers; its log is {agent.place.log}")
    os._exit(ExitCode.ANSWER_IS_BAD)


async def _up(arguments: argparse.Namespace, console: Console) -> int:
    place = here(arguments)
    agent = local_agent(place)
    with progress_display() as shown:
        interrupts = Interrupts(lambda: _leave(agent, shown))
        with interrupts.installed():
            async with machine(agent, place, shown.say) as at_work:
                await _first_contact(at_work.fleet)
                console.tell(
                    f"controller at {at_work.address}, local agent (pid {agent.pid}) as host {agent.place.host_name}",
                    "fleetctl submit FILE --watch hands it a job; Ctrl-C ends both",
                )
                await interrupts.asked.wait()
                shown.say("ending: servers are being stopped; Ctrl-C again leaves at once")
    console.tell("ended; no server is left")
    return ExitCode.DONE


async def _first_contact(controller: Controller) -> None:
    """Until the local agent is connected, so that the first submit finds it; what is wrong after that `fleetctl hosts` tells."""
    for _ in range(_FIRST_LOOKS):
        if all(host.state == "connected" for host in await controller.hosts()):
            return
        await asyncio.sleep(_LOOK_AGAIN_S)
