"""Which trial starts next on which host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_controller.core.schedule_inputs import SchedulableHost, waiting_job_of
from fleet_controller.core.scheduler import (
    HopelessTrial,
    TrialStart,
    hopeless_trials,
    next_starts,
    remaining_s,
)
from fleet_controller.core.trial_state import Attempt, Trial
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Outcome, Phase, TrialSpec

OK = Attempt(
    1, phase=Phase.OVER, outcome=Outcome.OK, started_unix_ns=1, ended_unix_ns=10_000_000_001
)
EXITED = Attempt(
    1,
    phase=Phase.OVER,
    outcome=Outcome.FAILED,
    kind=ErrorKind.SERVER_EXITED,
    ended_unix_ns=1_000_000_000,
)
OOM = replace(EXITED, kind=ErrorKind.SERVER_OOM)


def trial(name: str, host: str = "a", *attempts: Attempt) -> Trial:
    return Trial(TrialSpec(trial_id=name, host=host), attempts)


@dataclass(frozen=True)
class Job:
    """A job as the board would show it: its trials, and whether it was cancelled."""

    job_id: str
    trials: Sequence[Trial]
    cancelled: bool = False


def hosts_of(jobs: Iterable[Job], connected: Iterable[str]) -> list[SchedulableHost]:
    """What the hosts have to do for these jobs; those that are not connected are away."""
    running = Counter(
        host for job in jobs for trial in job.trials if trial.is_active for host in trial.hosts
    )
    named = {host for job in jobs for trial in job.trials for host in trial.hosts} | set(connected)
    return [
        SchedulableHost(
            name, closed_reason="" if name in connected else "away", running=running[name]
        )
        for name in sorted(named)
    ]


def starts(
    *jobs: Job, connected: tuple[str, ...] = ("a", "b"), now_ns: int = 10**12
) -> list[TrialStart]:
    waiting = [waiting_job_of(job.job_id, [] if job.cancelled else job.trials) for job in jobs]
    return list(next_starts(waiting, hosts_of(jobs, connected), now_ns))


def test_each_free_host_begins_its_first_waiting_trial_in_plan_order() -> None:
    job = Job("j", [trial("1", "a", OK), trial("2", "a"), trial("3", "b"), trial("4", "b")])
    assert starts(job) == [TrialStart("2", 1, "a"), TrialStart("3", 1, "b")]


def test_a_host_with_an_active_trial_begins_nothing() -> None:
    job = Job("j", [trial("1", "a", Attempt(1, phase=Phase.MEASURING)), trial("2", "a")])
    assert starts(job) == []


def test_an_active_trial_of_another_job_keeps_the_host_busy() -> None:
    other = Job("old", [trial("0", "a", Attempt(1, phase=Phase.STOPPING))], cancelled=True)
    assert starts(other, Job("j", [trial("1", "a")])) == []


def test_an_unreachable_host_begins_nothing() -> None:
    assert starts(Job("j", [trial("1", "a")]), connected=("b",)) == []


def test_the_older_job_goes_first() -> None:
    assert starts(Job("old", [trial("1")]), Job("new", [trial("2")])) == [TrialStart("1", 1, "a")]


def test_a_cancelled_job_begins_nothing() -> None:
    assert starts(Job("j", [trial("1")], cancelled=True)) == []


def test_a_retry_is_a_new_attempt_and_keeps_its_place() -> None:
    job = Job("j", [trial("1", "a", EXITED), trial("2", "a")])
    assert starts(job) == [TrialStart("1", 2, "a")]


def test_a_retry_waits_for_its_pause_and_lets_another_go_first() -> None:
    job = Job("j", [trial("1", "a", EXITED), trial("2", "a")])
    assert starts(job, now_ns=1_500_000_000) == [TrialStart("2", 1, "a")]


def test_a_host_whose_clock_is_ahead_is_not_paused_until_ours_catches_up() -> None:
    job = Job("j", [trial("1", "a", replace(EXITED, ended_unix_ns=3_600_000_000_000))])
    assert starts(job, now_ns=1_000_000_000) == [TrialStart("1", 2, "a")]


def test_what_is_not_retried_is_not_begun_again() -> None:
    assert starts(Job("j", [trial("1", "a", OOM)])) == []


def test_time_left_is_the_median_trial_times_the_longest_queue() -> None:
    trials = [trial("1", "a", OK), trial("2", "a"), trial("3", "a"), trial("4", "b")]
    assert remaining_s(trials, planned_s=99.0) == 20.0
    assert remaining_s([trial("1"), trial("2")], planned_s=99.0) == 99.0


ATTEMPTS = st.sampled_from([OK, EXITED, OOM, Attempt(1), Attempt(1, phase=Phase.MEASURING)])
TRIALS = st.lists(st.tuples(st.sampled_from("abc"), st.lists(ATTEMPTS, max_size=3)), max_size=12)


@given(TRIALS, st.sets(st.sampled_from("abc")))
def test_no_host_ever_has_two_trials_and_no_trial_is_begun_twice(
    drawn: list, connected: set[str]
) -> None:
    trials = [
        trial(
            str(number),
            host,
            *(replace(attempt, number=at) for at, attempt in enumerate(attempts, 1)),
        )
        for number, (host, attempts) in enumerate(drawn)
    ]
    begun = starts(Job("j", trials), connected=tuple(connected))
    assert len({start.host for start in begun}) == len(begun)
    busy = {entry.spec.host for entry in trials if entry.is_active}
    assert all(start.host in connected and start.host not in busy for start in begun)
    assert all(start.attempt == len(trials[int(start.trial_id)].attempts) + 1 for start in begun)


VOIDED = Attempt(
    1,
    phase=Phase.OVER,
    outcome=Outcome.FAILED,
    kind=ErrorKind.GATE_VOIDED,
    failure_class="env_not_effective",
    message="lost",
)


def of_variant(
    name: str, variant: str, *attempts: Attempt, host: str = "a", block: int = 1
) -> Trial:
    return Trial(TrialSpec(trial_id=name, host=host, variant=variant, block=block), attempts)


@pytest.mark.parametrize("kind", [ErrorKind.CONFIG, ErrorKind.SERVER_OOM, ErrorKind.DEPLOY_FAILED])
def test_a_variant_that_failed_for_good_is_not_launched_again_on_that_host(kind: ErrorKind) -> None:
    failed = replace(EXITED, kind=kind, failure_class="too_bad", message="launching: no room")
    others = (of_variant("3", "x", host="b"), of_variant("4", "y"))
    job = Job("j", [of_variant("1", "x", failed), of_variant("2", "x", block=2), *others])
    assert hopeless_trials(job.trials) == (
        HopelessTrial(
            "2",
            kind,
            "too_bad",
            "not launched again, because trial 1 of block 1 failed: launching: no room",
        ),
    )


def test_a_launch_that_a_gate_voided_is_not_made_again() -> None:
    assert [
        end.failure_class
        for end in hopeless_trials([of_variant("1", "x", VOIDED), of_variant("2", "x")])
    ] == ["env_not_effective"]


@pytest.mark.parametrize(
    "ended",
    [
        replace(VOIDED, runs=3),
        EXITED,
        replace(EXITED, kind=ErrorKind.AGENT_RESTARTED),
        OK,
        Attempt(1, phase=Phase.MEASURING),
    ],
    ids=["void runs", "exited", "restarted", "ok", "running"],
)
def test_what_may_end_otherwise_is_launched_again(ended: Attempt) -> None:
    assert hopeless_trials([of_variant("1", "x", ended), of_variant("2", "x")]) == ()


def test_only_trials_that_were_never_begun_are_closed() -> None:
    failed = replace(EXITED, kind=ErrorKind.CONFIG)
    trials = [
        of_variant("1", "x", failed),
        of_variant("2", "x", Attempt(1, phase=Phase.MEASURING)),
        of_variant("3", "x", EXITED),
    ]
    assert hopeless_trials(trials) == ()


@pytest.mark.parametrize(
    ("kind", "closed"),
    [(ErrorKind.CONFIG, ["3"]), (ErrorKind.SERVER_OOM, ["3"]), (ErrorKind.DEPLOY_FAILED, [])],
)
def test_a_block_without_a_host_is_not_launched_with_what_failed_for_good_elsewhere_unless_that_host_was_to_blame(
    kind: ErrorKind, closed: list[str]
) -> None:
    failed = replace(EXITED, kind=kind, failure_class="too_bad", message="no")
    later = [of_variant("3", "x", host="", block=2), of_variant("4", "y", host="", block=2)]
    trials = [of_variant("1", "x", failed), of_variant("2", "y"), *later]
    assert [end.trial_id for end in hopeless_trials(trials)] == closed
