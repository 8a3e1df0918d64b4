"""How events become the state of attempts, trials and jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_controller.core.state import Attempt, Trial, after, is_over, job_state
from fleet_protos import events as ev
from fleet_protos.errors import ErrorKind
from fleet_protos.trial import Outcome, Phase, RunResult, TrialSpec

SPEC = TrialSpec(trial_id="t", host="here")
OVER = Attempt(1, phase=Phase.OVER)
OK = replace(OVER, outcome=Outcome.OK)
OOM = replace(OVER, outcome=Outcome.FAILED, kind=ErrorKind.SERVER_OOM)
LOST = replace(OVER, outcome=Outcome.FAILED, kind=ErrorKind.AGENT_RESTARTED)
CANCELLED = replace(OVER, outcome=Outcome.CANCELLED)


def told(body: ev.Body, phase: Phase, at_ns: int = 7) -> ev.Event:
    return ev.Event(1, at_ns, "t", 1, 0, phase, body)


def test_an_attempt_follows_its_events() -> None:
    attempt = after(Attempt(1), told(ev.TrialAccepted(SPEC), Phase.LAUNCHING, 5), "a")
    attempt = after(attempt, told(ev.RunFinished(RunResult("w", 1)), Phase.MEASURING), "a")
    attempt = after(attempt, told(ev.TrialOver(Outcome.FAILED, ErrorKind.LOAD_FAILED, "c", "m"), Phase.OVER, 9), "a")
    assert attempt == Attempt(1, "a", Phase.OVER, Outcome.FAILED, ErrorKind.LOAD_FAILED, "c", "m", 1, 5, 9)


def test_an_attempt_that_is_over_takes_no_more_events() -> None:
    assert after(OK, told(ev.RunFinished(RunResult("w", 1)), Phase.MEASURING), "a") == OK


def test_an_event_of_an_unknown_kind_moves_the_phase_only() -> None:
    event = replace(told(ev.ServerReady(), Phase.WARMING), body=None)
    assert after(Attempt(1), event, "a") == Attempt(1, "a", Phase.WARMING)


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
def test_a_jobs_state_follows_from_its_trials(attempts: list[list[Attempt]], cancelled: bool, state: str) -> None:
    assert job_state([Trial(SPEC, tuple(entry)) for entry in attempts], cancelled) == state


def test_a_failure_that_is_retried_leaves_the_trial_open() -> None:
    assert not is_over(Trial(SPEC, (LOST,)), cancelled=False)
    assert is_over(Trial(SPEC, (LOST,)), cancelled=True)


def test_an_attempt_that_its_agents_stop_cancelled_is_tried_again_as_often_as_a_lost_agent() -> None:
    stopped = [replace(CANCELLED, number=number) for number in range(1, 5)]
    assert [Trial(SPEC, tuple(stopped[:count])).may_start for count in range(1, 5)] == [True, True, True, False]


def test_a_changed_attempt_takes_the_place_of_its_number() -> None:
    trial = Trial(SPEC, (LOST, Attempt(2))).changed(replace(OK, number=2)).changed(Attempt(3))
    assert [attempt.number for attempt in trial.attempts] == [1, 2, 3]
    assert trial.attempts[1].outcome is Outcome.OK
