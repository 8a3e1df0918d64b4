"""Promises about who lends load to a trial: no host with trials of the job, one trial at a time,
and a lost one holds up nobody else.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_controller.core.gang import member_specs
from fleet_controller.core.job import HostChoice, Job, LoadChoice
from fleet_controller.core.schedule_inputs import SchedulableHost, waiting_job_of, waiting_reason
from fleet_controller.core.scheduler import next_starts
from fleet_controller.core.trial_state import Trial
from fleet_controller.planning.host_selection import HostCandidate
from fleet_controller.planning.job_plan import make_plan, trial_specs
from fleet_controller.planning.load_host_assignment import (
    load_host_findings,
    load_host_limit_s,
    load_hosts_of,
    load_plan,
    shards_per_host,
)
from fleet_protos.trial_types import EngineKind, EngineSpec, Gang, LoadPlan, TrialSpec, Workload

ENGINE = EngineSpec(EngineKind.SIMULATED, "sim/kimi", {"tp_size": 8}, gpus=8)
JOB = Job(
    "job", ENGINE, (Workload("w", concurrency=1, requests=1, output_tokens=1),), load=LoadChoice()
)
FLEET = [
    HostCandidate("gpu1"), HostCandidate("gpu2", {"role": "load"}), HostCandidate("load1", {"role": "load"}, load_only=True),
    HostCandidate("load2", {"role": "load", "net": "fast"}, load_only=True),
]  # fmt: skip


def asking(**hosts: object) -> Job:
    return replace(JOB, load=LoadChoice(HostChoice(**hosts)))  # type: ignore[arg-type]


def codes(job: Job, *hosts: str) -> list[str]:
    return [finding.code for finding in load_host_findings(job, FLEET, hosts)]


@pytest.mark.parametrize(
    ("job", "hosts", "found"),
    [
        (JOB, ("gpu1",), ("load1", "load2")),
        (asking(labels={"role": "load"}), ("gpu1",), ("gpu2", "load1", "load2")),
        (asking(labels={"role": "load"}), ("gpu1", "gpu2"), ("load1", "load2")),
        (asking(labels={"net": "fast"}), ("gpu1",), ("load2",)),
        (asking(names=("gpu2",)), ("gpu1",), ("gpu2",)),
        (replace(JOB, load=None), ("gpu1",), ()),
    ],
)
def test_load_comes_from_hosts_that_match_and_get_no_trial_of_the_job(
    job: Job, hosts: tuple[str, ...], found: tuple[str, ...]
) -> None:
    assert load_hosts_of(job, FLEET, hosts) == found
    assert codes(job, *hosts) == []


def test_load_hosts_that_cannot_be_had_are_told() -> None:
    assert codes(asking(names=("gpu9",)), "gpu1") == ["unknown_host"]
    assert codes(asking(names=("gpu1",)), "gpu1") == ["load_host_has_trials"]
    assert codes(asking(labels={"role": "none"}), "gpu1") == ["no_load_hosts"]
    assert codes(replace(JOB, load=LoadChoice(shards=1)), "gpu1") == ["too_few_shards"]


@pytest.mark.parametrize(
    ("load", "found"),
    [
        (LoadPlan(("a", "b")), {"a": 1, "b": 1}),
        (LoadPlan(("a", "b"), 5), {"a": 3, "b": 2}),
        (LoadPlan(("a", "b", "c"), 4), {"a": 2, "b": 1, "c": 1}),
    ],
)
def test_each_host_has_a_core_for_every_shard_that_is_dealt_to_it(
    load: LoadPlan, found: dict[str, int]
) -> None:
    assert shards_per_host(load) == found


def test_every_trial_carries_its_load_hosts_and_the_members_of_a_gang_do_not() -> None:
    plan = make_plan(JOB, ["gpu1"], load_plan(JOB, ("load1", "load2")))
    specs = [spec for planned in plan.trials for spec in trial_specs(JOB, plan, planned, "job-1")]
    assert {spec.load for spec in specs} == {LoadPlan(("load1", "load2"))}
    assert plan.to_json()["load_hosts"] == ["load1", "load2"]
    lead = replace(specs[0], engine=replace(ENGINE, gang=Gang(nodes=2)))
    assert [member.load for member in member_specs(lead, ["gpu2"])] == [LoadPlan()]


def test_a_load_host_stays_longer_than_its_attempt_may_take() -> None:
    spec = TrialSpec(
        engine=replace(ENGINE, ready_timeout_s=100, stop_timeout_s=10), workloads=JOB.workloads
    )
    assert load_host_limit_s(replace(spec, witness=True)) > load_host_limit_s(spec) > 100 + 20 * 600


def trial(name: str, host: str, *load: str) -> Trial:
    return Trial(TrialSpec(trial_id=name, host=host, engine=ENGINE, load=LoadPlan(load)))


def begun(hosts: list[SchedulableHost], *jobs: list[Trial]) -> list[str]:
    waiting = [waiting_job_of(f"job{number}", trials) for number, trials in enumerate(jobs)]
    return [start.trial_id for start in next_starts(waiting, hosts, 0)]


def test_one_load_host_serves_one_trial_at_a_time() -> None:
    hosts = [
        SchedulableHost("gpu1"),
        SchedulableHost("gpu2"),
        SchedulableHost("load1", closed_reason="it only sends load"),
    ]
    assert begun(hosts, [trial("a", "gpu1", "load1"), trial("b", "gpu2", "load1")]) == ["a"]
    assert begun(
        [*hosts[:2], replace(hosts[2], can_lend_load=False)],
        [trial("a", "gpu1", "load1"), trial("c", "gpu2")],
    ) == ["c"]


def test_a_host_that_sends_load_gets_no_trial_meanwhile() -> None:
    assert begun(
        [SchedulableHost("gpu1"), SchedulableHost("gpu2")],
        [trial("a", "gpu1", "gpu2")],
        [trial("b", "gpu2")],
    ) == ["a"]


def test_a_trial_whose_turn_it_is_keeps_its_busy_load_host_from_jobs_behind_it() -> None:
    hosts = [
        SchedulableHost("gpu1", running=1),
        SchedulableHost("gpu2"),
        SchedulableHost("load1", closed_reason="it only sends load"),
    ]
    older, younger = [trial("a", "gpu1", "load1")], [trial("b", "gpu2", "load1")]
    assert (
        begun(
            [replace(hosts[0], running=0), hosts[1], replace(hosts[2], can_lend_load=False)],
            older,
            younger,
        )
        == []
    )
    assert begun([replace(hosts[0], running=0), *hosts[1:]], older, younger) == ["a"]


def test_a_lost_load_host_holds_up_only_those_who_need_it_and_is_told() -> None:
    away = SchedulableHost("load1", closed_reason="away", no_load_reason="away")
    assert begun(
        [SchedulableHost("gpu1"), away], [trial("a", "gpu1", "load1")], [trial("b", "gpu1")]
    ) == ["b"]
    waiting = waiting_job_of("job", [trial("a", "gpu1", "load1")])
    assert (
        waiting_reason(waiting, {"gpu1": SchedulableHost("gpu1"), "load1": away})
        == "load host load1 (away)"
    )
    assert (
        waiting_reason(waiting, {"gpu1": SchedulableHost("gpu1")})
        == "load host load1 (not known to this controller)"
    )
