"""Owns the following of a job: `fleetctl watch` and `submit`, and what `run` shares with them. Ends nothing."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fleet_controller.analysis.compare_runs import EXTERNAL, Comparison
from fleet_controller.cli.commands.compare import print_comparison
from fleet_controller.cli.commands.lint import finding_lines
from fleet_controller.cli.controller_connection import connected
from fleet_controller.cli.job_comparison import Asked, compare_job
from fleet_controller.cli.job_loading import load_for
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.live_display import Display, progress_display
from fleet_controller.core.controller_api import (
    Controller,
    HostStatus,
    JobDetail,
    JobSummary,
    TrialStatus,
)
from fleet_controller.core.job import Job
from fleet_controller.fleet_file.find_fleet_file import fleet_path
from fleet_controller.report.job_progress import Progress, advance, ending_text, finished_since
from fleet_protos.errors import ErrorKind, ExitCode
from fleet_protos.events import RunFinished
from fleet_protos.trial_types import Outcome, RunResult

_MOST_TOLD = 10
_BEFORE_A_LAUNCH = (ErrorKind.CONFIG, ErrorKind.CONFLICT)  # most often: what a preflight refuses has no log


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Follow a job until it is over, then print its verdicts; `submit` hands it over first."""
    return asyncio.run((_submit if arguments.command == "submit" else _watch)(arguments, console))


async def _submit(arguments: argparse.Namespace, console: Console) -> int:
    loaded, _ = load_for(arguments, console)  # all findings at once and at home, before the controller is asked
    console.tell(*finding_lines(loaded.findings, console))
    async with connected(arguments) as controller:
        job_id = await controller.submit(loaded.text, loaded.file_name, arguments.only_connected)
        console.tell(*waiting_lines(await controller.hosts(), await controller.job(job_id)), *_price_lines(loaded.job, arguments))
        if arguments.watch:
            console.tell(f"job {job_id}")
            return await watch_to_verdict(controller, job_id, arguments.json, console)
        trials = (await controller.job(job_id)).job.trials
    if arguments.json:
        console.json({"version": 1, "job": job_id, "trials": trials})
    else:
        console.lines([f"job {job_id}: {trials} trials; fleetctl watch {job_id} follows it"])
    return ExitCode.DONE


def waiting_lines(hosts: Sequence[HostStatus], detail: JobDetail) -> list[str]:
    """Hosts of the job that do not answer now: their trials wait for them."""
    counts = Counter(host for trial in detail.trials for host in {trial.host, *trial.nodes})
    silent = [host for host in hosts if host.state != "connected" and counts[host.host]]
    if not silent:
        return []
    count = sum(counts[host.host] for host in silent)
    lines = [f"{len(silent)} of {len([host for host in counts if host])} hosts do not answer now; {count} trials wait for them:"]
    lines += [f"  {host.host}: {host.message}" for host in silent[:_MOST_TOLD]]
    lines += [f"  and {len(silent) - _MOST_TOLD} more"] if len(silent) > _MOST_TOLD else []
    return [*lines, "  --only-connected leaves such hosts out"]


def _price_lines(job: Job, arguments: argparse.Namespace) -> list[str]:
    """What it costs by the fleet file that is here, which the controller's may differ from."""
    from fleet_controller.cli.commands.plan import cost_text, plan_on
    from fleet_controller.cli.fleet_file_option import read_fleet
    from fleet_controller.planning.cost import cost

    path = fleet_path(arguments.fleet)
    if path is None:
        return []
    fleet = read_fleet(path)
    price = cost(plan_on(job, fleet), job, fleet)
    return [f"estimated cost by {path}: {cost_text(price)}"] if price else []


async def _watch(arguments: argparse.Namespace, console: Console) -> int:
    async with connected(arguments) as controller:
        job_id = (await controller.job(arguments.job)).job.job_id
        return await watch_to_verdict(controller, job_id, arguments.json, console)


async def watch_to_verdict(controller: Controller, job_id: str, as_json: bool, console: Console) -> int:
    """Follow, then print; Ctrl-C ends only the watching, and says so."""
    try:
        with progress_display() as shown:
            await follow(controller, job_id, shown)
    except asyncio.CancelledError:  # asyncio.run makes one of Ctrl-C
        console.tell(f"job {job_id} goes on; fleetctl watch {job_id} follows it again, fleetctl cancel {job_id} ends it")
        raise
    return print_ending(await ending(controller, job_id), as_json, console)


async def follow(controller: Controller, job_id: str, shown: Display) -> JobSummary:
    """Show what happens until the job is over; the result is its last state."""
    progress = Progress()
    async for change in controller.watch(job_id):
        finished = await _newest_runs(controller, finished_since(progress, change))
        progress, lines = advance(progress, change, finished)
        shown.update(progress, lines)
    return progress.job


@dataclass(frozen=True, slots=True)
class Ending:
    """A job when nobody follows it any more, and its verdicts."""

    detail: JobDetail
    comparison: Comparison


async def ending(controller: Controller, job_id: str) -> Ending:
    """The job's state and verdicts as they are now."""
    return Ending(await controller.job(job_id), await compare_job(controller, job_id, Asked()))


def print_ending(end: Ending, as_json: bool, console: Console) -> int:
    """The verdict table of what was measured, and each trial that failed; 1 unless the job is done."""
    job, failed = end.detail.job, [trial for trial in end.detail.trials if trial.outcome == Outcome.FAILED]
    print_comparison(end.comparison, as_json, console)
    console.tell(*(f"{trial.trial_id} ({trial.variant}) attempt {trial.attempt}: {ending_text(trial)}" for trial in failed))
    launched = [trial for trial in failed if trial.kind not in _BEFORE_A_LAUNCH and not trial.message.startswith("not launched again")]
    if launched and job.engine != EXTERNAL:
        console.tell(f"fleetctl logs {launched[0].trial_id} shows that server's log")
    if not job.is_over:
        console.tell(f"job {job.job_id} is unfinished, and no controller runs: fleetctl resume {job.job_id} goes on with it")
    elif job.state != "done":
        console.tell(f"job {job.job_id} is {console.styled(job.state)}")
    return ExitCode.DONE if job.state == "done" else ExitCode.ANSWER_IS_BAD


async def _newest_runs(controller: Controller, trials: list[TrialStatus]) -> dict[str, RunResult]:
    found: dict[str, RunResult] = {}
    for trial in trials:
        detail = await controller.trial(trial.trial_id, trial.attempt, False)
        runs = [event.body.run for event in detail.events if isinstance(event.body, RunFinished)]
        if runs:
            found[trial.trial_id] = runs[-1]
    return found

