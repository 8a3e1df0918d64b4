"""When failures speak against a host, and how it comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from fleet_controller.core.quarantine import (
    ALWAYS_HOST_FAULT,
    HOST_STATES,
    LIKELY_HOST_FAULT,
    PROBE_MOST_S,
    QUARANTINE_POINTS,
    HostFailure,
    HostRecord,
    after_attempt,
    drain,
    failure_points,
    host_state,
    probe_pause_s,
    put_on_probation,
    undrain,
)
from fleet_controller.core.retry import RULES
from fleet_controller.core.trial_state import Attempt
from fleet_controller.jobs.host_metrics import HostSeries
from fleet_knowledge.failure_classes import FAILURES
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Outcome, Phase

OK = Attempt(1, "agent", Phase.OVER, Outcome.OK)
FAILED = replace(OK, outcome=Outcome.FAILED)
USERS = (
    ErrorKind.CONFIG,
    ErrorKind.SERVER_OOM,
    ErrorKind.GATE_VOIDED,
    ErrorKind.BUG,
    ErrorKind.LOAD_FAILED,
)


def failed(failure_class: str, kind: ErrorKind = ErrorKind.SERVER_EXITED) -> Attempt:
    return replace(FAILED, failure_class=failure_class, kind=kind)


def weighed(record: HostRecord, *attempts: Attempt, elsewhere: bool = False) -> HostRecord:
    for number, attempt in enumerate(attempts, start=1):
        record = after_attempt(
            record, f"t{number}", attempt, failure_points(attempt, elsewhere), number
        )
    return record


@pytest.mark.parametrize("failure_class", sorted(ALWAYS_HOST_FAULT))
def test_broken_hardware_sets_a_host_aside_at_once(failure_class: str) -> None:
    assert failure_class in FAILURES
    after = weighed(HostRecord("a"), failed(failure_class, ErrorKind.DEPLOY_FAILED))
    assert (after.aside, after.aside_since_unix_ns, after.setbacks) == (
        f"{failure_class} in t1",
        1,
        1,
    )


@pytest.mark.parametrize("failure_class", sorted(LIKELY_HOST_FAULT))
def test_three_failures_of_the_hosts_own_in_a_row_set_it_aside(failure_class: str) -> None:
    attempt = failed(failure_class, ErrorKind.CONFLICT)
    assert weighed(HostRecord("a"), attempt, attempt).aside == ""
    assert (
        weighed(HostRecord("a"), attempt, attempt, attempt).aside
        == f"{failure_class} in t1, t2, t3"
    )


def test_a_good_trial_between_them_forgets_them() -> None:
    restarted = failed("agent_restarted", ErrorKind.AGENT_RESTARTED)
    assert weighed(HostRecord("a"), restarted, restarted, OK, restarted, restarted).aside == ""


@pytest.mark.parametrize("kind", USERS)
@pytest.mark.parametrize("elsewhere", [True, False])
def test_what_is_the_users_or_ours_never_counts_and_forgets_nothing(
    kind: ErrorKind, elsewhere: bool
) -> None:
    restarted = failed("agent_restarted", ErrorKind.AGENT_RESTARTED)
    assert failure_points(failed("whatever", kind), elsewhere) == 0
    assert weighed(HostRecord("a"), restarted, restarted, failed("whatever", kind), restarted).aside


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in RULES
        if kind not in (*USERS, ErrorKind.AGENT_RESTARTED, ErrorKind.HOST_UNREACHABLE)
    ],
)
def test_a_failure_of_the_server_counts_only_where_the_variant_works_elsewhere(
    kind: ErrorKind,
) -> None:
    assert [
        failure_points(failed("nccl_timeout", kind), elsewhere) for elsewhere in (False, True)
    ] == [0, 1]


@pytest.mark.parametrize("failure_class", ["nccl_peer_lost", "gang_hold_limit"])
def test_what_followed_from_another_host_does_not_count(failure_class: str) -> None:
    assert failure_points(failed(failure_class), True) == 0


def test_an_attempt_that_no_agent_took_does_not_count() -> None:
    assert (
        failure_points(
            replace(failed("agent_restarted", ErrorKind.AGENT_RESTARTED), agent_id=""), True
        )
        == 0
    )


def test_after_a_clean_look_the_next_trial_decides() -> None:
    restarted = failed("agent_restarted", ErrorKind.AGENT_RESTARTED)
    aside = weighed(HostRecord("a"), restarted, restarted, restarted)
    back = put_on_probation(aside)
    assert (back.aside, back.closed_reason) == ("", "")
    again = weighed(back, restarted)
    assert again.aside
    assert (aside.setbacks, again.setbacks, weighed(back, OK)) == (1, 2, HostRecord("a"))


def test_looks_come_after_longer_and_longer_pauses_up_to_an_hour() -> None:
    record = HostRecord("a", aside="x", setbacks=1)
    assert [probe_pause_s(record, looks) for looks in range(8)] == [
        60,
        120,
        240,
        480,
        960,
        1920,
        PROBE_MOST_S,
        PROBE_MOST_S,
    ]
    assert probe_pause_s(replace(record, setbacks=3), 0) == 240


def test_undrain_forgets_all_and_a_drain_outweighs_being_set_aside() -> None:
    record = drain(weighed(HostRecord("a"), failed("gpu_lost")), "new kernel")
    assert record.closed_reason == "drained: new kernel"
    assert undrain(record) == HostRecord("a")
    assert drain(HostRecord("a"), "").closed_reason == "drained"


ENDS = st.sampled_from(
    [
        OK,
        failed("gpu_lost"),
        failed("agent_restarted", ErrorKind.AGENT_RESTARTED),
        failed("x", ErrorKind.CONFIG),
    ]
)


@given(st.lists(ENDS, max_size=30))
def test_a_host_is_set_aside_exactly_when_its_failures_in_a_row_make_enough(
    ends: list[Attempt],
) -> None:
    in_a_row, aside = 0, False
    for end in ends:
        in_a_row = 0 if end.outcome is Outcome.OK else in_a_row + failure_points(end, False)
        aside = aside or in_a_row >= QUARANTINE_POINTS
    record = weighed(HostRecord("a"), *ends)
    assert bool(record.aside) is aside
    assert len(record.failures) <= 5
    assert not aside or sum(entry.points for entry in record.failures) >= QUARANTINE_POINTS


@pytest.mark.parametrize(
    ("holds", "word"),
    [
        ({}, "free"),
        ({"busy": True}, "busy"),
        ({"busy": True, "drained": True}, "drained"),
        ({"away": True, "aside": True}, "away"),
    ],
)
def test_a_host_counts_under_one_word(holds: dict[str, bool], word: str) -> None:
    assert host_state(holds) == word


def test_each_named_failure_is_kept_with_its_trial() -> None:
    record = weighed(HostRecord("a"), failed("agent_restarted", ErrorKind.AGENT_RESTARTED))
    assert record.failures == (HostFailure("t1", 1, "agent_restarted", 1),)


def test_every_state_of_hosts_has_a_number_for_prometheus() -> None:
    collectors = CollectorRegistry()
    series = HostSeries(collectors)
    series.set_counts({"free": 2, "aside": 1})
    series.set_counts({"free": 1, "drained": 2})
    counts = {
        state: collectors.get_sample_value("fleet_hosts", {"state": state}) for state in HOST_STATES
    }
    assert counts == {"away": 0, "drained": 2, "aside": 0, "busy": 0, "free": 1}
