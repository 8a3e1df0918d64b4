"""Which hosts a job gets, and what is told when it asks for none that exist; what a plan costs by
the fleet file.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_controller.core.host_view import (
    GPUS_UNKNOWN,
    label_differences,
    merge_gpus,
    merge_labels,
)
from fleet_controller.core.inventory import FleetHost, Inventory
from fleet_controller.core.job import HostChoice, Job
from fleet_controller.job_file.job_loader import load_job
from fleet_controller.planning.cost import estimate_cost
from fleet_controller.planning.estimate import estimate_seconds
from fleet_controller.planning.host_selection import (
    HostCandidate,
    choose_hosts,
    host_choice_findings,
)
from fleet_controller.planning.job_plan import make_plan

JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: job
model: {path: sim/kimi}
engine: {kind: simulated, gpus: 8, args: {tp_size: 8}}
factors: {nccl: {default: {}, tuned: {env: {NCCL_PROTO: LL}}}}
workloads: {single: {concurrency: 1, output_tokens: 50}}
measure: {launches: 2}
hosts:
  names: [gpu1, gpu3]
"""
UP = HostCandidate("gpu1", {"gpu": "h200"}, connected=True, in_file=True)
DOWN = HostCandidate("gpu2", {"gpu": "h200"}, connected=False, in_file=True)
LOAD = HostCandidate("load1", {"gpu": "none"}, connected=True, in_file=True, load_only=True)
STRANGER = HostCandidate("box", {}, connected=False)
ALL = (UP, DOWN, LOAD, STRANGER)


def asking(**choice: object) -> Job:
    return replace(load_job(JOB, "job.yaml").job, hosts=HostChoice(**choice))  # type: ignore[arg-type] # fields of a choice


def told(job: Job, only_connected: bool = False) -> list[tuple[str, str]]:
    return [
        (finding.code, finding.key) for finding in host_choice_findings(job, ALL, only_connected)
    ]


def test_a_host_of_the_file_is_planned_on_though_it_does_not_answer() -> None:
    assert choose_hosts(asking(), ALL) == ("gpu1", "gpu2")


def test_only_connected_leaves_it_out() -> None:
    assert choose_hosts(asking(), ALL, only_connected=True) == ("gpu1",)


def test_an_unknown_name_is_told_at_its_place_with_the_nearest() -> None:
    finding = next(host_choice_findings(load_job(JOB, "job.yaml").job, ALL))
    assert (finding.code, finding.line, finding.column, finding.key) == (
        "unknown_host",
        10,
        17,
        "hosts.names[1]",
    )
    assert finding.hint == "did you mean `gpu2`?"


def test_a_host_for_load_alone_cannot_be_asked_for() -> None:
    assert told(asking(names=("load1",))) == [("load_only_host", "hosts.names[0]")]
    assert told(asking(labels={"gpu": "none"})) == [("no_such_label", "hosts.labels.gpu")]


@pytest.mark.parametrize(
    ("labels", "hint"),
    [
        ({"gpu": "h100"}, "the values of gpu on the hosts are: h200"),
        ({"cpu": "x"}, "the hosts have the labels: gpu"),
    ],
)
def test_a_label_that_no_host_has_is_told_with_those_that_are(
    labels: dict[str, str], hint: str
) -> None:
    assert [finding.hint for finding in host_choice_findings(asking(labels=labels), ALL)] == [hint]


def test_a_match_that_is_away_is_told_when_only_connected_hosts_are_wanted() -> None:
    hosts = (DOWN, replace(UP, labels={}))
    findings = list(
        host_choice_findings(asking(labels={"gpu": "h200"}), hosts, only_connected=True)
    )
    assert [finding.code for finding in findings] == ["no_hosts"]


def test_a_job_that_fits_has_nothing_to_tell() -> None:
    assert told(asking(labels={"gpu": "h200"})) == []


def fleet(*hosts: FleetHost) -> Inventory:
    return Inventory(hosts=hosts, currency="EUR")


def test_a_plan_costs_each_host_for_as_long_as_it_is_held() -> None:
    job = asking()
    plan = make_plan(job, ("a", "b"))
    price = estimate_cost(
        plan,
        job,
        fleet(FleetHost(name="a", cost_per_hour=36.0), FleetHost(name="b", cost_per_hour=72.0)),
    )
    assert price is not None
    hours = estimate_seconds(plan, job) / 3600  # both work side by side and equally long
    assert (price.amount, price.currency, price.unknown_hosts) == (
        pytest.approx(hours * 108.0),
        "EUR",
        (),
    )


def test_hosts_whose_cost_is_not_told_are_named() -> None:
    job = asking()
    price = estimate_cost(
        make_plan(job, ("a", "b")),
        job,
        fleet(FleetHost(name="a", cost_per_hour=1.0), FleetHost(name="b")),
    )
    assert price is not None
    assert (set(price.by_host), price.unknown_hosts) == ({"a"}, ("b",))


def test_a_fleet_without_costs_has_no_price() -> None:
    job = asking()
    assert estimate_cost(make_plan(job, ("a",)), job, fleet(FleetHost(name="a"))) is None


def test_labels_of_the_file_win_and_the_difference_is_told() -> None:
    known = FleetHost(labels={"gpu": "h200", "rack": "1"})
    assert merge_labels(known, {"gpu": "a100", "own": "x"}) == {
        "gpu": "h200",
        "rack": "1",
        "own": "x",
    }
    assert label_differences(known, {"gpu": "a100", "own": "x"}) == (
        "gpu is a100 for the agent and h200 in the fleet file",
    )
    assert (merge_labels(None, {"a": "b"}), label_differences(None, {"a": "b"})) == ({"a": "b"}, ())


@pytest.mark.parametrize(
    ("known", "told", "gpus"),
    [
        (None, 8, 8),
        (FleetHost(gpus=4), 8, 4),
        (FleetHost(gpus=16), 8, 8),
        (FleetHost(gpus=4), None, 4),
        (FleetHost(), None, GPUS_UNKNOWN),
        (None, None, 0),
    ],
)
def test_gpus_are_what_the_agent_has_and_no_more_than_the_file_says(
    known: FleetHost | None, told: int | None, gpus: int
) -> None:
    assert merge_gpus(known, told) == gpus
