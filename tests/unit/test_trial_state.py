"""How events become the state of attempts, trials and jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_controller.core.retry import INTERRUPTIONS_MAX
from fleet_controller.core.trial_state import (
    HOST_GIVEN_UP,
    Attempt,
    HostClock,
    Trial,
    apply_event,
    is_over,
    job_state,
)
from fleet_protos import events as ev
from fleet_protos.errors import AGENT_STOPPED, ErrorKind
from fleet_protos.trial_types import Outcome, Phase, RunResult, TrialSpec

SPEC = TrialSpec(trial_id="t", host="here")
OVER = Attempt(1, phase=Phase.OVER)
OK = replace(OVER, outcome=Outcome.OK)
OOM = replace(OVER, outcome=Outcome.FAILED, kind=ErrorKind.SERVER_OOM)
LOST = replace(OVER, outcome=Outcome.FAILED, kind=ErrorKind.AGENT_RESTARTED)
CANCELLED = replace(OVER, outcome=Outcome.CANCELLED)


def told(body: ev.Body, phase: Phase, at_ns: int = 7) -> ev.Event:
    return ev.Event(1, at_ns, "t", 1, 0, phase, body)


def test_an_attempt_follows_its_events() -> None:
    attempt = apply_event(Attempt(1), told(ev.TrialAccepted(SPEC), Phase.LAUNCHING, 5), "a")
    attempt = apply_event(attempt, told(ev.RunFinished(RunResult("w", 1)), Phase.MEASURING), "a")
    attempt = apply_event(
        attempt,
        told(ev.TrialOver(Outcome.FAILED, ErrorKind.LOAD_FAILED, "c", "m"), Phase.OVER, 9),
        "a",
    )
    assert attempt == Attempt(
        1, "a", Phase.OVER, Outcome.FAILED, ErrorKind.LOAD_FAILED, "c", "m", 1, 5, 9
    )


def test_an_attempt_that_is_over_takes_no_more_events() -> None:
    assert apply_event(OK, told(ev.RunFinished(RunResult("w", 1)), Phase.MEASURING), "a") == OK


GAVE_UP = replace(
    OVER,
    outcome=Outcome.FAILED,
    kind=ErrorKind.HOST_UNREACHABLE,
    failure_class=HOST_GIVEN_UP,
    message="away",
)


def test_what_another_journal_tells_of_an_attempt_changes_nothing() -> None:
    ours = Attempt(1, "a", Phase.MEASURING)
    assert apply_event(ours, told(ev.TrialOver(Outcome.OK), Phase.OVER), "b") == ours


@pytest.mark.parametrize(
    "body",
    [
        ev.TrialOver(Outcome.FAILED, ErrorKind.SERVER_OOM),
        ev.TrialOver(Outcome.CANCELLED),
        ev.ServerReady(),
    ],
)
def test_any_other_end_of_an_attempt_that_was_given_up_leaves_why_nobody_waited(
    body: ev.Body,
) -> None:
    assert apply_event(GAVE_UP, told(body, Phase.OVER), "a") == replace(GAVE_UP, agent_id="a")


def test_an_ok_end_of_an_attempt_that_was_given_up_counts_once_and_only_while_it_is_the_newest() -> (
    None
):
    end = told(ev.TrialOver(Outcome.OK), Phase.OVER, 9)
    assert apply_event(GAVE_UP, end, "a", is_newest=False) == replace(GAVE_UP, agent_id="a")
    counted = apply_event(GAVE_UP, end, "a")
    assert (counted.outcome, counted.kind, counted.failure_class, counted.message, counted.ended_unix_ns) == (
        Outcome.OK, ErrorKind.NONE, "", "", 9,
    )  # fmt: skip
    assert apply_event(counted, told(ev.TrialOver(Outcome.FAILED), Phase.OVER), "a") == counted


def test_a_trial_that_was_given_up_is_over_though_its_kind_would_be_tried_again() -> None:
    assert Trial(SPEC, (replace(GAVE_UP, failure_class=""),)).may_start
    assert not Trial(SPEC, (GAVE_UP,)).may_start
    assert job_state([Trial(SPEC, (GAVE_UP,))], False) == "failed"


@pytest.mark.parametrize("ahead_s", [-86_400, -3, 0, 3, 86_400])
def test_times_are_by_our_clock_however_far_the_hosts_is_from_it(ahead_s: int) -> None:
    ahead_ns, now = ahead_s * 10**9, 2 * 10**18
    clock = HostClock(ahead_ns, now)
    attempt = apply_event(
        Attempt(1),
        told(ev.TrialAccepted(SPEC), Phase.LAUNCHING, now - 10 * 10**9 + ahead_ns),
        "a",
        clock,
    )
    attempt = apply_event(
        attempt, told(ev.TrialOver(Outcome.OK), Phase.OVER, now - 4 * 10**9 + ahead_ns), "a", clock
    )
    assert (attempt.started_unix_ns, attempt.ended_unix_ns) == (now - 10 * 10**9, now - 4 * 10**9)


def test_a_clock_that_jumps_between_two_looks_gives_neither_a_time_to_come_nor_a_negative_duration() -> (
    None
):
    now = 2 * 10**18
    attempt = apply_event(
        Attempt(1),
        told(ev.TrialAccepted(SPEC), Phase.LAUNCHING, now + 86_400 * 10**9),
        "a",
        HostClock(0, now),
    )
    attempt = apply_event(
        attempt,
        told(ev.TrialOver(Outcome.OK), Phase.OVER, now - 86_400 * 10**9),
        "a",
        HostClock(0, now + 5),
    )
    assert attempt.started_unix_ns == attempt.ended_unix_ns == now


def test_an_event_of_an_unknown_kind_moves_the_phase_only() -> None:
    event = replace(told(ev.ServerReady(), Phase.WARMING), body=None)
    assert apply_event(Attempt(1), event, "a") == Attempt(1, "a", Phase.WARMING)
    assert apply_event(Attempt(1), replace(event, phase=Phase.UNSPECIFIED), "a") == Attempt(
        1, "a", Phase.QUEUED
    ), "nor to one it does not know"


@pytest.mark.parametrize(
    ("attempts", "cancelled", "state"),
    [
        ([[]], False, "queued"),
        ([[]], True, "cancelled"),
        ([[Attempt(1, phase=Phase.QUEUED)]], False, "running"),
        ([[OK], []], False, "running"),
        ([[OK], []], True, "cancelled"),
        ([[OK], [OK]], False, "done"),
        ([[OK], [OK]], True, "done"),
        ([[OOM]], False, "failed"),
        ([[LOST]], False, "running"),
        ([[LOST]], True, "cancelled"),
        ([[LOST, replace(OK, number=2)]], False, "done"),
        ([[CANCELLED], [OK]], True, "cancelled"),
        ([[CANCELLED], [OK]], False, "running"),
        ([[Attempt(1, phase=Phase.STOPPING)]], True, "running"),
        ([[OOM], [OK]], False, "failed"),
    ],
)
def test_a_jobs_state_follows_from_its_trials(
    attempts: list[list[Attempt]], cancelled: bool, state: str
) -> None:
    assert job_state([Trial(SPEC, tuple(entry)) for entry in attempts], cancelled) == state


def test_a_failure_that_is_retried_leaves_the_trial_open() -> None:
    assert not is_over(Trial(SPEC, (LOST,)), cancelled=False)
    assert is_over(Trial(SPEC, (LOST,)), cancelled=True)


@pytest.mark.parametrize("end", [CANCELLED, replace(LOST, failure_class=AGENT_STOPPED)])
def test_an_interrupted_attempt_is_repeated_and_counts_as_no_failure(end: Attempt) -> None:
    stopped = [replace(end, number=number) for number in range(1, INTERRUPTIONS_MAX + 2)]
    assert all(Trial(SPEC, tuple(stopped[:count])).may_start for count in range(INTERRUPTIONS_MAX))
    assert not Trial(SPEC, tuple(stopped)).may_start  # an agent that ends everything is not endless
    lost = [replace(LOST, number=number) for number in range(10, 14)]
    assert Trial(SPEC, (*stopped[:4], *lost[:3])).may_start
    assert not Trial(SPEC, (*stopped[:4], *lost)).may_start


def test_a_changed_attempt_takes_the_place_of_its_number() -> None:
    trial = (
        Trial(SPEC, (LOST, Attempt(2))).with_attempt(replace(OK, number=2)).with_attempt(Attempt(3))
    )
    assert [attempt.number for attempt in trial.attempts] == [1, 2, 3]
    assert trial.attempts[1].outcome is Outcome.OK
