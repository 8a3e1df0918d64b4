"""Which trial starts next on which host."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleet_controller.core.schedule import JobTrials, Start, left_s, next_starts
from fleet_controller.core.state import Attempt, Trial
from fleet_protos.errors import ErrorKind
from fleet_protos.trial import Outcome, Phase, TrialSpec

OK = Attempt(1, phase=Phase.OVER, outcome=Outcome.OK, started_unix_ns=1, ended_unix_ns=10_000_000_001)
EXITED = Attempt(1, phase=Phase.OVER, outcome=Outcome.FAILED, kind=ErrorKind.SERVER_EXITED, ended_unix_ns=1_000_000_000)
OOM = replace(EXITED, kind=ErrorKind.SERVER_OOM)


def trial(name: str, host: str = "a", *attempts: Attempt) -> Trial:
    return Trial(TrialSpec(trial_id=name, host=host), attempts)


def starts(*jobs: JobTrials, connected: tuple[str, ...] = ("a", "b"), now_ns: int = 10**12) -> list[Start]:
    return list(next_starts(jobs, connected, now_ns))


def test_each_free_host_begins_its_first_waiting_trial_in_plan_order() -> None:
    job = JobTrials("j", [trial("1", "a", OK), trial("2", "a"), trial("3", "b"), trial("4", "b")])
    assert starts(job) == [Start("2", 1, "a"), Start("3", 1, "b")]


def test_a_host_with_an_active_trial_begins_nothing() -> None:
    job = JobTrials("j", [trial("1", "a", Attempt(1, phase=Phase.MEASURING)), trial("2", "a")])
    assert starts(job) == []


def test_an_active_trial_of_another_job_keeps_the_host_busy() -> None:
    other = JobTrials("old", [trial("0", "a", Attempt(1, phase=Phase.STOPPING))], cancelled=True)
    assert starts(other, JobTrials("j", [trial("1", "a")])) == []


def test_an_unreachable_host_begins_nothing() -> None:
    assert starts(JobTrials("j", [trial("1", "a")]), connected=("b",)) == []


def test_the_older_job_goes_first() -> None:
    assert starts(JobTrials("old", [trial("1")]), JobTrials("new", [trial("2")])) == [Start("1", 1, "a")]


def test_a_cancelled_job_begins_nothing() -> None:
    assert starts(JobTrials("j", [trial("1")], cancelled=True)) == []


def test_a_retry_is_a_new_attempt_and_keeps_its_place() -> None:
    job = JobTrials("j", [trial("1", "a", EXITED), trial("2", "a")])
    assert starts(job) == [Start("1", 2, "a")]


def test_a_retry_waits_for_its_pause_and_lets_another_go_first() -> None:
    job = JobTrials("j", [trial("1", "a", EXITED), trial("2", "a")])
    assert starts(job, now_ns=1_500_000_000) == [Start("2", 1, "a")]


def test_a_host_whose_clock_is_ahead_is_not_paused_until_ours_catches_up() -> None:
    job = JobTrials("j", [trial("1", "a", replace(EXITED, ended_unix_ns=3_600_000_000_000))])
    assert starts(job, now_ns=1_000_000_000) == [Start("1", 2, "a")]


def test_what_is_not_retried_is_not_begun_again() -> None:
    assert starts(JobTrials("j", [trial("1", "a", OOM)])) == []


def test_time_left_is_the_median_trial_times_the_longest_queue() -> None:
    trials = [trial("1", "a", OK), trial("2", "a"), trial("3", "a"), trial("4", "b")]
    assert left_s(trials, planned_s=99.0) == 20.0
    assert left_s([trial("1"), trial("2")], planned_s=99.0) == 99.0


ATTEMPTS = st.sampled_from([OK, EXITED, OOM, Attempt(1), Attempt(1, phase=Phase.MEASURING)])
TRIALS = st.lists(st.tuples(st.sampled_from("abc"), st.lists(ATTEMPTS, max_size=3)), max_size=12)


@given(TRIALS, st.sets(st.sampled_from("abc")))
def test_no_host_ever_has_two_trials_and_no_trial_is_begun_twice(drawn: list, connected: set[str]) -> None:
    trials = [
        trial(str(number), host, *(replace(attempt, number=at) for at, attempt in enumerate(attempts, 1)))
        for number, (host, attempts) in enumerate(drawn)
    ]
    begun = next_starts([JobTrials("j", trials)], connected, 10**12)
    assert len({start.host for start in begun}) == len(begun)
    busy = {entry.spec.host for entry in trials if entry.is_active}
    assert all(start.host in connected and start.host not in busy for start in begun)
    assert all(start.attempt == len(trials[int(start.trial_id)].attempts) + 1 for start in begun)
