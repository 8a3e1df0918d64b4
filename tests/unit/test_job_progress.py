"""Promises of progress: one line for each phase entered and each run finished, never a line twice."""

from __future__ import annotations

from dataclasses import replace

from fleet_controller.core.controller_api import JobChange, JobSummary, TrialStatus
from fleet_controller.report.job_progress import (
    JobProgress,
    advance_progress,
    finished_since,
    progress_lines,
    trial_outcome_text,
)
from fleet_protos.trial_types import ErrorKind, Gate, GateEffect, Outcome, Phase, RunResult

JOB = JobSummary(
    "demo-1a2b3c", "demo", "running", trials=6, trials_over=2, engine="simulated", time_scale=100
)
TRIAL = TrialStatus("demo-1a2b3c-b1-v2", "nccl=tuned", "box", 1, 1, Phase.LAUNCHING)
RUN = RunResult(workload="single", index=1, metrics={"output_tok_s": 88.84})


def seen(*trials: TrialStatus) -> JobProgress:
    return advance_progress(JobProgress(), JobChange(JOB, trials), {})[0]


def lines(before: JobProgress, now: TrialStatus, *runs: RunResult) -> list[str]:
    return advance_progress(
        before, JobChange(JOB, (now,)), {now.trial_id: runs[-1]} if runs else {}
    )[1]


def test_each_phase_is_told_once() -> None:
    measuring = replace(TRIAL, phase=Phase.MEASURING)
    assert lines(seen(TRIAL), measuring) == ["demo-1a2b3c-b1-v2 (nccl=tuned): measuring"]
    assert lines(seen(measuring), measuring) == []


def test_each_step_of_a_launch_is_told_once() -> None:
    loading = replace(TRIAL, progress="load_weight 61/163")
    assert lines(seen(TRIAL), loading) == [
        "demo-1a2b3c-b1-v2 (nccl=tuned): launching: load_weight 61/163"
    ]
    assert lines(seen(loading), loading) == []
    progress, _ = advance_progress(JobProgress(), JobChange(JOB, (loading,)), {})
    assert "launching: load_weight 61/163" in progress_lines(progress)[1]


def test_queued_trials_are_not_told() -> None:
    assert lines(JobProgress(), replace(TRIAL, phase=Phase.QUEUED)) == []


def test_what_was_over_before_the_first_look_is_no_news() -> None:
    over = replace(TRIAL, phase=Phase.OVER, outcome=Outcome.OK, runs=5)
    assert finished_since(JobProgress(), JobChange(JOB, (over,))) == []
    assert lines(JobProgress(), over) == []
    assert lines(JobProgress(), TRIAL) == ["demo-1a2b3c-b1-v2 (nccl=tuned): launching"]


def test_finished_run_is_told_with_its_rate_and_that_it_is_simulated() -> None:
    before, now = (
        replace(TRIAL, phase=Phase.MEASURING),
        replace(TRIAL, phase=Phase.MEASURING, runs=1),
    )
    assert finished_since(seen(before), JobChange(JOB, (now,))) == [now]
    assert lines(seen(before), now, RUN) == [
        "demo-1a2b3c-b1-v2 (nccl=tuned): run 1 finished, single 88.8 tok/s (simulated ×100)"
    ]
    assert finished_since(seen(now), JobChange(JOB, (now,))) == []


def test_voided_run_shows_its_gate_and_no_number() -> None:
    voided = replace(RUN, gates=(Gate("short_output", GateEffect.VOID_RUN, ""),))
    (line,) = lines(
        seen(replace(TRIAL, phase=Phase.MEASURING)),
        replace(TRIAL, phase=Phase.MEASURING, runs=1),
        voided,
    )
    assert line.endswith("run 1 finished, single voided by short_output")


def test_new_attempt_starts_its_phases_anew() -> None:
    failed = replace(
        TRIAL,
        phase=Phase.OVER,
        outcome=Outcome.FAILED,
        failure_class="oom_kv",
        message="no room",
        runs=3,
    )
    again = replace(TRIAL, attempt=2)
    assert (
        lines(seen(TRIAL), failed, RUN)[-1]
        == "demo-1a2b3c-b1-v2 (nccl=tuned): failed (oom_kv): no room"
    )
    assert lines(seen(failed), again) == ["demo-1a2b3c-b1-v2 (nccl=tuned, attempt 2): launching"]
    assert finished_since(seen(failed), JobChange(JOB, (replace(again, runs=1),))) != []


def test_failure_without_a_class_shows_its_kind() -> None:
    assert (
        trial_outcome_text(TrialStatus(outcome=Outcome.FAILED, kind=ErrorKind.AGENT_RESTARTED))
        == "failed (agent_restarted)"
    )


def test_the_first_warm_up_of_a_host_says_what_it_waits_for() -> None:
    warming = replace(TRIAL, phase=Phase.WARMING)
    (told,) = lines(seen(TRIAL), warming)
    assert told.endswith(
        "warming: the first warm-up on this host also starts Ray, which takes about ten seconds"
    )
    over = replace(
        TRIAL, trial_id="demo-1a2b3c-b1-v1", phase=Phase.OVER, outcome=Outcome.OK, runs=3
    )
    (told,) = lines(seen(TRIAL, over), warming)
    assert told.endswith(": warming")
    (told,) = lines(seen(TRIAL, replace(over, host="other")), warming)
    assert "Ray" in told


def test_display_holds_counts_time_left_last_rate_and_the_running_trial() -> None:
    progress, _ = advance_progress(
        JobProgress(),
        JobChange(JOB, (replace(TRIAL, phase=Phase.WARMING),), left_s=300),
        {"x": RUN},
    )
    head, running, last = progress_lines(progress, since_s=60)
    assert head.endswith("2/6 trials · about 4 min left")
    assert "warming" in running
    assert "nccl=tuned" in running
    assert last == "  last run: single 88.8 tok/s (simulated ×100)"


def test_display_without_a_job_says_what_is_awaited() -> None:
    assert progress_lines(JobProgress()) == ["starting the local agent"]


def test_display_of_a_job_without_trials_does_not_divide_by_zero() -> None:
    assert "0/0 trials" in progress_lines(JobProgress(JobSummary("a")))[0]
