"""A server over several hosts is one trial: planned, begun, told and ended as one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_controller.core.gang import (
    fold_gang,
    fold_gangs,
    hold_limit_s,
    lead_and_rank,
    meeting_host,
    member_id,
    member_specs,
    nodes_to_end,
    spec_for_agent,
)
from fleet_controller.core.schedule_inputs import SchedulableHost, waiting_job_of
from fleet_controller.core.scheduler import TrialStart, next_starts
from fleet_controller.core.trial_state import Attempt, Trial, job_state
from fleet_controller.job_file.job_loader import load_job
from fleet_controller.planning.job_plan import make_plan, trial_specs
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import EngineSpec, Gang, Measure, Outcome, Phase, TrialSpec, Workload

JOB = load_job(
    """\
apiVersion: benchfleet/v1
kind: Job
name: job
model: {path: sim/kimi}
engine: {kind: simulated, gpus: 8, nodes: 2, args: {tp_size: 16}}
factors: {nccl: {default: {}, tuned: {env: {NCCL_PROTO: LL}}}}
baseline: {nccl: default}
workloads: {single: {concurrency: 1, prompts: builtin:chat, output_tokens: 50}}
measure: {launches: 2}
""",
    "job.yaml",
).job
SPEC = TrialSpec(
    "t", host="a", engine=EngineSpec(gang=Gang(2)), workloads=(Workload("w", concurrency=1),)
)
NOW_NS = 10**15
OK = Attempt(1, phase=Phase.OVER, outcome=Outcome.OK, ended_unix_ns=5)
CANCELLED = replace(OK, outcome=Outcome.CANCELLED)
EXITED = replace(
    OK,
    outcome=Outcome.FAILED,
    kind=ErrorKind.SERVER_EXITED,
    failure_class="killed",
    message="it was killed",
)
LOST = replace(EXITED, failure_class="nccl_peer_lost", message="the peer is gone", ended_unix_ns=3)
CRASHED = replace(EXITED, failure_class="scheduler_crashed", message="it crashed", ended_unix_ns=4)
LEFT = replace(
    EXITED,
    kind=ErrorKind.SERVER_UNHEALTHY,
    failure_class="left_over_processes",
    message="pid 7 is left",
)


def gang(lead: Attempt | None, member: Attempt | None, spec: TrialSpec = SPEC) -> Trial:
    (other,) = member_specs(spec, ["b"])
    return fold_gang(
        Trial(spec, (lead,) if lead else ()), [Trial(other, (member,) if member else ())]
    )


def at(phase: Phase) -> Attempt:
    return Attempt(1, phase=phase)


def newest(trial: Trial) -> Attempt:
    assert trial.newest is not None
    return trial.newest


# Plan


def test_hosts_are_taken_in_their_order_as_many_as_a_server_needs() -> None:
    plan = make_plan(JOB, ["d", "c", "b", "a"])
    assert {(trial.host, trial.members) for trial in plan.trials} == {("d", ("c",)), ("b", ("a",))}
    assert len(plan.trials) == 2 * 2 * 2


def test_any_host_gives_each_block_to_one_gang() -> None:
    plan = make_plan(replace(JOB, hosts=replace(JOB.hosts, every_host=False)), ["a", "b", "c", "d"])
    assert [(trial.host, trial.block) for trial in plan.trials] == [
        ("a", 1),
        ("a", 1),
        ("c", 2),
        ("c", 2),
    ]


@pytest.mark.parametrize(
    ("hosts", "codes", "is_refused"),
    [("a", ["too_few_hosts"], True), ("abc", ["hosts_left_over"], False), ("ab", [], False)],
)
def test_too_few_hosts_refuse_the_plan_and_left_over_ones_are_told(
    hosts: str, codes: list[str], is_refused: bool
) -> None:
    plan = make_plan(JOB, list(hosts))
    assert ([finding.code for finding in plan.findings], plan.is_refused) == (codes, is_refused)


def test_each_node_gets_its_rank_and_only_the_lead_drives_load() -> None:
    plan = make_plan(JOB, ["a", "b"])
    lead, member = trial_specs(JOB, plan, plan.trials[0], "j-1")
    assert member.trial_id == f"{lead.trial_id}_n1"
    assert [(spec.host, spec.engine.gang.rank, len(spec.workloads)) for spec in (lead, member)] == [
        ("a", 0, 1),
        ("b", 1, 0),
    ]
    assert lead.attempt == member.attempt == 1
    assert (
        not lead.witness
        and lead.engine.gang.hold_limit_s == member.engine.gang.hold_limit_s == hold_limit_s(lead)
    )
    assert lead.engine.gpus == member.engine.gpus == 8


def test_a_member_holds_as_long_as_the_slowest_lead_could_take() -> None:
    workload = Workload(concurrency=2, requests=5, request_timeout_s=10.0)
    spec = TrialSpec(
        engine=EngineSpec(ready_timeout_s=100.0, stop_timeout_s=1.0),
        workloads=(workload,),
        measure=Measure(runs_max=3),
    )
    assert hold_limit_s(spec) == 101.0 + 4 * 3 * 10.0


def test_the_id_of_a_node_tells_its_trial_and_rank() -> None:
    assert lead_and_rank(member_id("j-1-b1-v2-host-n1", 3)) == ("j-1-b1-v2-host-n1", 3)
    assert lead_and_rank("j-1-b1-v2-host-n1") == ("j-1-b1-v2-host-n1", 0)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("unix:/run/a.sock", "127.0.0.1"), ("localhost:7000", "127.0.0.1"), ("gpu-1:7000", "gpu-1"), ("10.0.0.7:7000", "10.0.0.7"),
        ("dns:///gpu-1:7000", "gpu-1"), ("dns:gpu-1:7000", "gpu-1"), ("ipv4:10.0.0.7:7000", "10.0.0.7"), ("[fd00::1]:7000", "[fd00::1]"),
    ],
)  # fmt: skip
def test_a_gang_meets_where_the_leads_agent_is_reached(address: str, host: str) -> None:
    assert meeting_host(address) == host


def test_a_label_says_where_a_host_behind_a_tunnel_is_met() -> None:
    assert [meeting_host("127.0.0.1:7000", label) for label in ("gpu-1", "fd00::1")] == [
        "gpu-1",
        "[fd00::1]",
    ]


def test_all_nodes_of_an_attempt_meet_at_one_place_and_a_retry_at_another() -> None:
    specs = (SPEC, *member_specs(SPEC, ["b"]))
    first, second = (
        [spec_for_agent(spec, number, "10.0.0.7").engine.gang.init_address for spec in specs]
        for number in (1, 2)
    )
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]
    assert all(20_000 <= int(address.partition(":")[2]) < 32_000 for address in (*first, *second))


# Schedule


def starts(*trials: Trial, connected: str = "abc") -> list[TrialStart]:
    busy = {host for trial in trials if trial.is_active for host in trial.hosts}
    hosts = [
        SchedulableHost(
            name, closed_reason="" if name in connected else "away", running=name in busy
        )
        for name in "abc"
    ]
    return list(
        next_starts(
            [waiting_job_of("j", trials[:1]), waiting_job_of("k", trials[1:])], hosts, NOW_NS
        )
    )


def single(name: str, host: str, *attempts: Attempt) -> Trial:
    return Trial(TrialSpec(name, host=host), attempts)


def test_a_gang_begins_on_all_of_its_hosts_at_once() -> None:
    assert starts(gang(None, None)) == [TrialStart("t", 1, "a", (("t_n1", "b"),))]


def test_a_gang_waits_for_a_busy_host_and_keeps_the_free_one() -> None:
    assert (
        starts(single("s", "b", at(Phase.MEASURING)), gang(None, None), single("later", "a")) == []
    )


def test_a_gang_with_an_unreachable_host_holds_up_nobody() -> None:
    assert starts(gang(None, None), single("later", "a"), connected="a") == [
        TrialStart("later", 1, "a")
    ]


def test_a_gang_of_which_one_node_is_not_over_keeps_all_of_its_hosts() -> None:
    assert starts(gang(OK, at(Phase.STOPPING)), single("later", "a")) == []


def test_the_whole_gang_is_tried_again() -> None:
    assert starts(gang(CANCELLED, EXITED)) == [TrialStart("t", 2, "a", (("t_n1", "b"),))]


# One trial of all


@pytest.mark.parametrize(
    ("lead", "member", "outcome", "kind", "message"),
    [
        (OK, OK, Outcome.OK, ErrorKind.NONE, ""),
        (
            CANCELLED,
            EXITED,
            Outcome.FAILED,
            ErrorKind.SERVER_EXITED,
            "node 1 on host b: it was killed",
        ),
        (EXITED, CANCELLED, Outcome.FAILED, ErrorKind.SERVER_EXITED, "it was killed"),
        (EXITED, OK, Outcome.FAILED, ErrorKind.SERVER_EXITED, "it was killed"),
        (LOST, EXITED, Outcome.FAILED, ErrorKind.SERVER_EXITED, "node 1 on host b: it was killed"),
        (
            CRASHED,
            EXITED,
            Outcome.FAILED,
            ErrorKind.SERVER_EXITED,
            "node 1 on host b: it was killed",
        ),
        (CRASHED, LOST, Outcome.FAILED, ErrorKind.SERVER_EXITED, "it crashed"),
        (CANCELLED, OK, Outcome.CANCELLED, ErrorKind.NONE, ""),
        (CANCELLED, CANCELLED, Outcome.CANCELLED, ErrorKind.NONE, ""),
        (OK, LOST, Outcome.OK, ErrorKind.NONE, ""),
        (OK, LEFT, Outcome.OK, ErrorKind.NONE, "node 1 on host b: pid 7 is left"),
    ],
)
def test_a_gang_ends_as_its_lead_did_or_by_the_cause_that_came_first(
    lead: Attempt, member: Attempt, outcome: Outcome, kind: ErrorKind, message: str
) -> None:
    end = newest(gang(lead, member))
    assert (end.phase, end.outcome, end.kind, end.message) == (Phase.OVER, outcome, kind, message)


def test_a_gang_is_over_when_all_of_its_nodes_are() -> None:
    trial = gang(OK, at(Phase.STOPPING))
    assert (trial.is_active, newest(trial).phase, newest(trial).outcome) == (
        True,
        Phase.STOPPING,
        Outcome.UNSPECIFIED,
    )


def test_nodes_count_as_one_trial_of_their_job() -> None:
    (member,) = member_specs(SPEC, ["b"])
    trials = fold_gangs([Trial(SPEC, (OK,)), Trial(member, (OK,)), single("s", "c", OK)])
    assert [trial.spec.trial_id for trial in trials] == ["t", "s"]
    assert job_state(trials, cancelled=False) == "done"


# Ends


@pytest.mark.parametrize(
    ("lead", "member", "ended"),
    [
        (Phase.MEASURING, Phase.MEASURING, set()),
        (Phase.MEASURING, Phase.COLLECTING, {"t"}),
        (Phase.LAUNCHING, Phase.OVER, {"t"}),
        (Phase.COLLECTING, Phase.MEASURING, set()),
        (Phase.STOPPING, Phase.MEASURING, {"t_n1"}),
        (Phase.OVER, Phase.QUEUED, {"t_n1"}),
        (Phase.COLLECTING, Phase.OVER, set()),
    ],
)
def test_a_node_that_ends_ends_the_others_but_never_a_lead_that_is_collecting(
    lead: Phase, member: Phase, ended: set[str]
) -> None:
    assert set(nodes_to_end(gang(at(lead), at(member)))) == ended


STEPS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["on", "die", "order"])), max_size=60)


@given(STEPS)
def test_no_half_gang_is_left_once_everything_has_been_told(steps: list[tuple[int, str]]) -> None:
    """Nodes move on, die and take orders in any order; afterwards all orders that stand are carried
    out and all ends are told.
    """
    nodes = [Trial(spec, (Attempt(1),)) for spec in (SPEC, *member_specs(SPEC, ["b", "c"]))]
    for number, what in steps:
        _move(nodes, number, what)
    if any(newest(node).phase >= Phase.COLLECTING for node in nodes):
        for _ in range(20):
            for number in range(3):
                _move(nodes, number, "order")
                if newest(nodes[number]).phase >= Phase.COLLECTING:
                    _move(nodes, number, "on")
    alive = {node.is_active for node in nodes}
    assert len(alive) == 1
    assert fold_gang(nodes[0], nodes[1:]).is_active is alive.pop()


def _move(nodes: list[Trial], number: int, what: str) -> None:
    attempt, trial = newest(nodes[number]), fold_gang(nodes[0], nodes[1:])
    if attempt.is_over or (
        what == "order" and nodes[number].spec.trial_id not in nodes_to_end(trial)
    ):
        return
    if what == "on" and attempt.phase in (Phase.WARMING, Phase.MEASURING) and number:
        return  # a member holds until it is told
    ended = Phase.COLLECTING if what == "die" else Phase.STOPPING
    phase = Phase(attempt.phase + 1) if what == "on" else max(attempt.phase, ended)
    nodes[number] = nodes[number].with_attempt(replace(attempt, phase=phase))
