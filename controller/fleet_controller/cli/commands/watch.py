"""Owns the following of a job: `fleetctl watch` and `submit`, and what `run` shares with them. Ends
nothing.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fleet_controller.analysis.comparison_values import EXTERNAL, Comparison
from fleet_controller.cli.commands.compare import print_comparison
from fleet_controller.cli.commands.lint import finding_lines
from fleet_controller.cli.controller_connection import open_controller
from fleet_controller.cli.job_comparison import VerdictOptions, compare_job
from fleet_controller.cli.job_loading import load_and_prune
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.live_display import ProgressDisplay, progress_display
from fleet_controller.core.controller_api import (
    Controller,
    HostStatus,
    JobDetail,
    JobSummary,
    TrialStatus,
)
from fleet_controller.core.job import Job
from fleet_controller.fleet_file.find_fleet_file import find_fleet_file
from fleet_controller.report.job_progress import (
    JobProgress,
    advance_progress,
    finished_since,
    trial_outcome_text,
)
from fleet_protos.errors import ErrorKind, ExitCode
from fleet_protos.events import RunFinished
from fleet_protos.trial_types import Outcome, RunResult

_MAX_LISTED = 10
_KINDS_WITHOUT_LOG = (
    ErrorKind.CONFIG,
    ErrorKind.CONFLICT,
)  # most often: what a preflight refuses has no log


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Follow a job until it is over, then print its verdicts; `submit` hands it over first."""
    return asyncio.run((_submit if arguments.command == "submit" else _watch)(arguments, console))


async def _submit(arguments: argparse.Namespace, console: Console) -> int:
    loaded, _ = load_and_prune(
        arguments, console
    )  # all findings at once and at home, before the controller is asked
    console.print_stderr(*finding_lines(loaded.findings, console))
    async with open_controller(arguments) as controller:
        job_id = await controller.submit(loaded.text, loaded.file_name, arguments.only_connected)
        console.print_stderr(
            *waiting_lines(await controller.hosts(), await controller.job(job_id)),
            *_price_lines(loaded.job, arguments),
        )
        if arguments.watch:
            console.print_stderr(f"job {job_id}")
            return await watch_to_verdict(controller, job_id, arguments.json, console)
        trials = (await controller.job(job_id)).job.trials
    if arguments.json:
        console.print_json({"version": 1, "job": job_id, "trials": trials})
    else:
        console.print_lines([f"job {job_id}: {trials} trials; fleetctl watch {job_id} follows it"])
    return ExitCode.DONE


def waiting_lines(hosts: Sequence[HostStatus], detail: JobDetail) -> list[str]:
    """Hosts of the job that do not answer now: their trials wait for them."""
    counts = Counter(host for trial in detail.trials for host in {trial.host, *trial.nodes})
    silent = [host for host in hosts if host.state != "connected" and counts[host.host]]
    if not silent:
        return []
    count = sum(counts[host.host] for host in silent)
    lines = [
        f"{len(silent)} of {len([host for host in counts if host])} hosts do not answer now; {count} trials wait for them:"
    ]
    lines += [f"  {host.host}: {host.message}" for host in silent[:_MAX_LISTED]]
    lines += [f"  and {len(silent) - _MAX_LISTED} more"] if len(silent) > _MAX_LISTED else []
    return [*lines, "  --only-connected leaves such hosts out"]


def _price_lines(job: Job, arguments: argparse.Namespace) -> list[str]:
    """What it costs by the fleet file that is here, which the controller's may differ from."""
    from fleet_controller.cli.commands.plan import cost_text, plan_for_fleet
    from fleet_controller.cli.fleet_file_option import read_fleet
    from fleet_controller.planning.cost import estimate_cost

    path = find_fleet_file(arguments.fleet)
    if path is None:
        return []
    fleet = read_fleet(path)
    price = estimate_cost(plan_for_fleet(job, fleet), job, fleet)
    return [f"estimated cost by {path}: {cost_text(price)}"] if price else []


async def _watch(arguments: argparse.Namespace, console: Console) -> int:
    async with open_controller(arguments) as controller:
        job_id = (await controller.job(arguments.job)).job.job_id
        return await watch_to_verdict(controller, job_id, arguments.json, console)


async def watch_to_verdict(
    controller: Controller, job_id: str, as_json: bool, console: Console
) -> int:
    """Follow, then print; Ctrl-C ends only the watching, and says so."""
    try:
        with progress_display() as display:
            await follow_job(controller, job_id, display)
    except asyncio.CancelledError:  # asyncio.run makes one of Ctrl-C
        console.print_stderr(
            f"job {job_id} goes on; fleetctl watch {job_id} follows it again, fleetctl cancel {job_id} ends it"
        )
        raise
    return print_outcome(await fetch_outcome(controller, job_id), as_json, console)


async def follow_job(controller: Controller, job_id: str, display: ProgressDisplay) -> JobSummary:
    """Show what happens until the job is over; the result is its last state."""
    progress = JobProgress()
    async for change in controller.watch(job_id):
        finished = await _fetch_newest_runs(controller, finished_since(progress, change))
        progress, lines = advance_progress(progress, change, finished)
        display.update(progress, lines)
    return progress.job


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """A job when nobody follows it any more, and its verdicts."""

    detail: JobDetail
    comparison: Comparison


async def fetch_outcome(controller: Controller, job_id: str) -> JobOutcome:
    """The job's state and verdicts as they are now."""
    return JobOutcome(
        await controller.job(job_id), await compare_job(controller, job_id, VerdictOptions())
    )


def print_outcome(outcome: JobOutcome, as_json: bool, console: Console) -> int:
    """The verdict table of what was measured, and each trial that failed; 1 unless the job is done."""
    job, failed = (
        outcome.detail.job,
        [trial for trial in outcome.detail.trials if trial.outcome == Outcome.FAILED],
    )
    print_comparison(outcome.comparison, as_json, console)
    console.print_stderr(
        *(
            f"{trial.trial_id} ({trial.variant}) attempt {trial.attempt}: {trial_outcome_text(trial)}"
            for trial in failed
        )
    )
    launched = [
        trial
        for trial in failed
        if trial.kind not in _KINDS_WITHOUT_LOG
        and not trial.message.startswith("not launched again")
    ]
    if launched and job.engine != EXTERNAL:
        console.print_stderr(f"fleetctl logs {launched[0].trial_id} shows that server's log")
    if not job.is_over:
        console.print_stderr(
            f"job {job.job_id} is unfinished, and no controller runs: fleetctl resume {job.job_id} goes on with it"
        )
    elif job.state != "done":
        console.print_stderr(f"job {job.job_id} is {console.styled(job.state)}")
    return ExitCode.DONE if job.state == "done" else ExitCode.FAILED


async def _fetch_newest_runs(
    controller: Controller, trials: list[TrialStatus]
) -> dict[str, RunResult]:
    found: dict[str, RunResult] = {}
    for trial in trials:
        detail = await controller.trial(trial.trial_id, trial.attempt, False)
        runs = [event.body.run for event in detail.events if isinstance(event.body, RunFinished)]
        if runs:
            found[trial.trial_id] = runs[-1]
    return found
