"""Promises of what is said about a server that failed: the telling line, its rank and what to do,
once for each class.
"""

from __future__ import annotations

from fleet_controller.core.controller_api import TrialStatus
from fleet_controller.report.failure_causes import cause_lines, first_of_each_class
from fleet_knowledge.failure_classes import FAILURES
from fleet_protos.errors import ErrorKind
from fleet_protos.events import Event, ServerFailed, ServerReady
from fleet_protos.trial_types import Outcome


def test_cause_rank_and_hint_are_those_of_the_servers_last_failure() -> None:
    failed = ServerFailed(
        ErrorKind.SERVER_OOM,
        "oom_weights",
        "m",
        cause_line="CUDA out of memory",
        rank="TP1",
        hint="use more GPUs",
    )
    events = [Event(1, body=ServerReady()), Event(2, body=failed), Event(3, body=None)]
    assert cause_lines(events) == [
        "cause (TP1): CUDA out of memory",
        "hint: use more GPUs",
        f"avoid: {FAILURES['oom_weights'].avoid}",
    ]


def test_a_class_without_a_row_has_the_hint_of_its_event_alone() -> None:
    assert cause_lines(
        [Event(1, body=ServerFailed(failure_class="brand_new", hint="look at it"))]
    ) == ["hint: look at it"]
    assert cause_lines([Event(1, body=ServerFailed(failure_class="brand_new"))]) == []


def test_a_trial_whose_server_did_not_fail_has_no_cause() -> None:
    assert cause_lines([Event(1, body=ServerReady())]) == []


def test_each_class_is_told_by_its_first_trial() -> None:
    def trial(
        name: str, failure_class: str, attempt: int = 1, outcome: Outcome = Outcome.FAILED
    ) -> TrialStatus:
        return TrialStatus(name, attempt=attempt, outcome=outcome, failure_class=failure_class)

    trials = [
        trial("1", "", outcome=Outcome.OK),
        trial("2", "a"),
        trial("3", "a"),
        trial("4", "b"),
        trial("5", "c", attempt=0),
    ]
    assert [shown.trial_id for shown in first_of_each_class(trials)] == ["2", "4"]
