"""Follows a job to its end and prints its verdicts, for `watch`, `submit`, `run` and `resume`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from fleet_controller.analysis.comparison_values import EXTERNAL, Comparison
from fleet_controller.cli.controller_client import ControllerLost
from fleet_controller.cli.job_comparison import VerdictOptions, compare_job, print_comparison
from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.terminal.live_display import ProgressDisplay, progress_display
from fleet_controller.core.controller_api import (
    Controller,
    JobDetail,
    JobSummary,
    TrialStatus,
    is_job_over,
)
from fleet_controller.report.job_progress import (
    JobProgress,
    advance_progress,
    finished_since,
    trial_outcome_text,
)
from fleet_protos.errors import ErrorKind, ExitCode
from fleet_protos.events import RunFinished
from fleet_protos.trial_types import Outcome, RunResult

# Most failures of these kinds come from a preflight, before there is any log.
_KINDS_WITHOUT_LOG = (ErrorKind.CONFIG, ErrorKind.CONFLICT)
_RECONNECT_LIMIT_S = 600.0
_RECONNECT_PAUSE_S = 0.5


async def watch_to_verdict(
    controller: Controller, job_id: str, as_json: bool, console: Console
) -> int:
    """Follow a job, then print its verdicts and return the exit code. Ctrl-C ends only the
    watching.
    """
    try:
        with progress_display() as display:
            await follow_job(controller, job_id, display)
    except asyncio.CancelledError:  # asyncio.run turns Ctrl-C into this
        console.print_stderr(
            f"job {job_id} continues; `fleetctl watch {job_id}` follows it again,"
            f" `fleetctl cancel {job_id}` cancels it"
        )
        raise
    return print_outcome(await fetch_outcome(controller, job_id), as_json, console)


async def follow_job(controller: Controller, job_id: str, display: ProgressDisplay) -> JobSummary:
    """Show the progress of a job until it is over, and return its last state. If the controller
    restarts meanwhile, continue with the next one. Raises ControllerLost after ten minutes.
    """
    progress = JobProgress()
    while True:
        try:
            async for change in controller.watch(job_id):
                finished = await _fetch_newest_runs(controller, finished_since(progress, change))
                progress, lines = advance_progress(progress, change, finished)
                display.update(progress, lines)
            return progress.job
        except ControllerLost as lost:
            if not progress.job.job_id:  # it was never there
                raise
            await _wait_for_controller(controller, job_id, lost, display)


async def _wait_for_controller(
    controller: Controller, job_id: str, lost: ControllerLost, display: ProgressDisplay
) -> None:
    """Return when the controller answers again. Raises `lost` after the time limit."""
    display.print_line(f"{lost.message}; waiting for it for up to ten minutes")
    deadline_s = time.monotonic() + _RECONNECT_LIMIT_S
    while time.monotonic() < deadline_s:
        await asyncio.sleep(_RECONNECT_PAUSE_S)
        try:
            await controller.job(job_id)
        except ControllerLost:
            continue
        display.print_line("the controller answers again")
        return
    raise lost


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """Holds the last state of a followed job and its verdicts."""

    detail: JobDetail
    comparison: Comparison


async def fetch_outcome(controller: Controller, job_id: str) -> JobOutcome:
    """Fetch the job's current state and compute its verdicts."""
    return JobOutcome(
        await controller.job(job_id), await compare_job(controller, job_id, VerdictOptions())
    )


def print_outcome(outcome: JobOutcome, as_json: bool, console: Console) -> int:
    """Print the verdict table and each failed trial.

    Return the exit code: FAILED unless the job's state is `done`.
    """
    job = outcome.detail.job
    failed = [trial for trial in outcome.detail.trials if trial.outcome == Outcome.FAILED]
    print_comparison(outcome.comparison, as_json, console)
    console.print_stderr(
        *(
            f"{trial.trial_id} ({trial.variant}) attempt {trial.attempt}:"
            f" {trial_outcome_text(trial)}"
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
        console.print_stderr(f"`fleetctl logs {launched[0].trial_id}` prints that server's log")
    if not is_job_over(job):
        console.print_stderr(
            f"job {job.job_id} is unfinished and no controller is running;"
            f" `fleetctl resume {job.job_id}` continues it"
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
