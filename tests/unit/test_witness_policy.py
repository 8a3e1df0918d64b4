"""Promises of when a witness is launched: where NCCL is used and the job has a say in how, once for
each variant on each host.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet_controller.core.job import HostChoice, Job, Level
from fleet_controller.planning.job_plan import make_plan, place_on_host, trial_spec
from fleet_protos.trial_types import EngineKind, EngineSpec, TrialSpec, Workload

ENGINE = EngineSpec(kind=EngineKind.SGLANG, model_path="m", python="p", args={"tp_size": 8})
NCCL = {"nccl": {"default": Level(), "tuned": Level(env={"NCCL_PROTO": "LL"})}}
BATCH = {"batch": {"few": Level(), "many": Level(args={"max_running_requests": 8})}}
JOB = Job(
    "j",
    ENGINE,
    (Workload(name="single", concurrency=1),),
    factors=NCCL,
    baseline={"nccl": "default"},
    launches=4,
)


def specs(job: Job, *hosts: str) -> list[TrialSpec]:
    plan = make_plan(job, hosts)
    assert plan.trials, plan.findings
    return [trial_spec(job, plan, planned, 1, "j-1") for planned in plan.trials]


def proving(mode: str, job: Job = JOB) -> Job:
    return replace(job, engine=replace(job.engine, proof=mode))


@pytest.mark.parametrize("mode", ["", "auto", "witness"])
def test_the_first_trial_of_each_variant_on_each_host_has_a_witness(mode: str) -> None:
    witnessed = [
        (spec.host, spec.variant, spec.block)
        for spec in specs(proving(mode), "h1", "h2")
        if spec.witness
    ]
    assert sorted(witnessed) == [
        (host, variant, 1) for host in ("h1", "h2") for variant in ("nccl=default", "nccl=tuned")
    ]


def test_a_block_that_may_go_anywhere_has_its_witnesses_where_the_job_has_not_been() -> None:
    movable = specs(replace(JOB, hosts=HostChoice(every_host=False)), "h1", "h2")
    assert {(spec.host, spec.witness) for spec in movable} == {("", True)}
    assert place_on_host(movable[0], "h2", hosts_used={"h1"}) == replace(movable[0], host="h2")
    assert place_on_host(movable[0], "h1", hosts_used={"h1"}) == replace(
        movable[0], host="h1", witness=False
    )


@pytest.mark.parametrize("mode", ["timed", "off"])
def test_other_modes_have_none(mode: str) -> None:
    assert not any(spec.witness for spec in specs(proving(mode), "h1"))


def test_a_job_that_leaves_communication_alone_has_none_unless_it_asks() -> None:
    job = replace(JOB, factors=BATCH, baseline={"batch": "few"})
    assert not any(spec.witness for spec in specs(job, "h1"))
    assert any(spec.witness for spec in specs(proving("witness", job), "h1"))


@pytest.mark.parametrize(
    "engine",
    [
        replace(ENGINE, env={"NCCL_ALGO": "Ring"}),
        replace(ENGINE, args={"tp_size": 2, "disable_custom_all_reduce": True}),
    ],
    ids=["variable", "argument"],
)
def test_what_all_variants_share_counts_as_a_say_in_communication(engine: EngineSpec) -> None:
    job = replace(JOB, engine=engine, factors=BATCH, baseline={"batch": "few"})
    assert sum(spec.witness for spec in specs(job, "h1")) == 2


def test_one_gpu_talks_to_nobody() -> None:
    job = replace(JOB, engine=replace(ENGINE, args={}))
    assert not any(spec.witness for spec in specs(job, "h1"))


def test_a_simulated_server_shows_its_variables_in_every_launch() -> None:
    job = replace(
        JOB, engine=EngineSpec(kind=EngineKind.SIMULATED, model_path="m", args={"tp_size": 8})
    )
    assert not any(spec.witness for spec in specs(job, "h1"))
    assert any(spec.witness for spec in specs(proving("witness", job), "h1"))
