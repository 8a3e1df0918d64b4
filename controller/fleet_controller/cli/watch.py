"""Owns the following of a job: `fleetctl watch`, and what `run` and `submit --watch` share. Ends nothing."""

from __future__ import annotations

import argparse
import asyncio

from fleet_protos.errors import ExitCode
from fleet_protos.events import RunFinished
from fleet_protos.trial import RunResult

from fleet_controller.cli.compare import print_comparison
from fleet_controller.cli.connect import connected
from fleet_controller.cli.console import Console
from fleet_controller.cli.display import Display, progress_display
from fleet_controller.cli.results import Asked, compare_job
from fleet_controller.report.progress import Progress, advance, ending_text, finished_since
from fleet_controller.report.values import Controller, JobSummary, TrialStatus


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Follow a job until it is over, then print its verdicts."""
    return asyncio.run(_watch(arguments, console))


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
    return await print_verdict(controller, job_id, as_json, console)


async def follow(controller: Controller, job_id: str, shown: Display) -> JobSummary:
    """Show what happens until the job is over; the result is its last state."""
    progress = Progress()
    async for change in controller.watch(job_id):
        finished = await _newest_runs(controller, finished_since(progress, change))
        progress, lines = advance(progress, change, finished)
        shown.update(progress, lines)
    return progress.job


async def print_verdict(controller: Controller, job_id: str, as_json: bool, console: Console) -> int:
    """The verdict table of what was measured, and each trial that failed; 1 unless the job is done."""
    detail = await controller.job(job_id)
    print_comparison(await compare_job(controller, job_id, Asked()), as_json, console)
    failed = [trial for trial in detail.trials if trial.failure_class or trial.message]
    for trial in failed:
        console.tell(f"{trial.trial_id} ({trial.variant}) attempt {trial.attempt}: {ending_text(trial)}")
    if failed:
        console.tell(f"fleetctl logs {failed[0].trial_id} shows that server's log")
    if detail.job.state != "done":
        console.tell(f"job {job_id} is {console.styled(detail.job.state)}")
        return ExitCode.ANSWER_IS_BAD
    return ExitCode.DONE


async def _newest_runs(controller: Controller, trials: list[TrialStatus]) -> dict[str, RunResult]:
    found: dict[str, RunResult] = {}
    for trial in trials:
        detail = await controller.trial(trial.trial_id, trial.attempt, False)
        runs = [event.body.run for event in detail.events if isinstance(event.body, RunFinished)]
        if runs:
            found[trial.trial_id] = runs[-1]
    return found

