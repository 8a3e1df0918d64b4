"""Promises of the text that says behind what a queued job waits, and at which place."""

from __future__ import annotations

from fleet_controller.core.queue_position import queue_texts, queued_jobs
from fleet_controller.core.schedule_inputs import SchedulableHost, WaitingJob
from fleet_controller.core.trial_state import Trial
from fleet_protos.trial_types import TrialSpec

HOSTS = {name: SchedulableHost(name) for name in ("a", "b")}


def waiting(job_id: str, *hosts: str, priority: int = 0, host_time_s: float = 0.0) -> WaitingJob:
    trial = Trial(TrialSpec(f"{job_id}-b1-v1"))
    pinned = {host: [trial] for host in hosts}
    return WaitingJob(job_id, pinned, priority=priority, host_time_s=host_time_s)


def texts(*jobs: WaitingJob, **busy: tuple[str, ...]) -> dict[str, str]:
    return queue_texts(queued_jobs(jobs, HOSTS), busy)


def test_queued_jobs_are_numbered_in_the_order_in_which_they_are_served() -> None:
    jobs = (
        waiting("old", "a", host_time_s=9.0),
        waiting("new", "a", host_time_s=1.0),
        waiting("urgent", "a", priority=5, host_time_s=99.0),
    )
    assert texts(*jobs, a=("running",)) == {
        "urgent": "behind job running, place 1 of 3 in the queue",
        "new": "behind job running, place 2 of 3 in the queue",
        "old": "behind job running, place 3 of 3 in the queue",
    }


def test_a_place_is_that_of_the_host_with_the_fewest_jobs_before() -> None:
    jobs = (waiting("first", "a"), waiting("both", "a", "b"), waiting("last", "b"))
    found = texts(*jobs, a=("x",), b=("y",))
    assert found["both"] == "behind jobs x, y, place 1 of 2 in the queue"
    assert found["last"] == "behind job y, place 2 of 2 in the queue"


def test_a_job_with_a_free_or_without_an_open_host_waits_behind_nobody() -> None:
    assert texts(waiting("free", "a", "b"), a=("x",)) == {}
    assert texts(waiting("unknown", "c"), a=("x",)) == {}
    closed = {"a": SchedulableHost("a", closed_reason="drained")}
    assert queued_jobs([waiting("drained", "a")], closed) == ()


def test_of_many_running_jobs_three_are_named() -> None:
    assert texts(waiting("w", "a"), a=("r1", "r2", "r3", "r4", "r5"))["w"].startswith(
        "behind jobs r1, r2, r3 and 2 more, place 1 of 1"
    )
