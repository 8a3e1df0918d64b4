"""The plan of a job: variants, blocks, trials and what is told about them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet_controller.core.job import HostChoice, Job, Level
from fleet_controller.job_file.job_loader import load_job
from fleet_controller.planning.estimate import estimate_seconds, gpu_hours
from fleet_controller.planning.job_plan import make_plan, trial_id, trial_spec
from fleet_knowledge.sglang.parallelism import count_needed_gpus
from fleet_protos.codec import from_proto, to_proto
from fleet_protos.trial_types import (
    EngineKind,
    EngineSpec,
    Measure,
    Simulation,
    TrialSpec,
    Workload,
)
from fleet_protos.v1 import trial_pb2

ENGINE = EngineSpec(
    kind=EngineKind.SGLANG,
    model_path="m",
    args={"tp_size": 8, "trust_remote_code": True},
    env={"A": "1"},
)
FACTORS = {
    "nccl": {"default": Level(), "tuned": Level(env={"NCCL_PROTO": "LL"})},
    "speculation": {
        "none": Level(),
        "eagle": Level(args={"speculative_algorithm": "EAGLE3"}),
        "ngram": Level(args={"speculative_algorithm": "NGRAM"}),
    },
}
JOB = Job(
    name="j",
    engine=ENGINE,
    workloads=(Workload(name="single", concurrency=1, requests=1, output_tokens=500),),
    measure=Measure(seed=1),
    factors=FACTORS,
    baseline={"nccl": "default", "speculation": "none"},
)


def codes(job: Job, *hosts: str) -> list[str]:
    return [finding.code for finding in make_plan(job, hosts or ("h1",)).findings]


def test_every_combination_is_a_variant_with_the_last_factor_turning_fastest() -> None:
    assert [variant.name for variant in make_plan(JOB, ["h1"]).variants] == [
        "nccl=default,speculation=none",
        "nccl=default,speculation=eagle",
        "nccl=default,speculation=ngram",
        "nccl=tuned,speculation=none",
        "nccl=tuned,speculation=eagle",
        "nccl=tuned,speculation=ngram",
    ]


def test_one_variant_is_the_baseline() -> None:
    assert [variant.name for variant in make_plan(JOB, ["h1"]).variants if variant.is_baseline] == [
        "nccl=default,speculation=none"
    ]


def test_without_factors_there_is_the_default_variant() -> None:
    plan = make_plan(replace(JOB, factors={}, baseline={}), ["h1"])
    assert [(variant.name, variant.is_baseline) for variant in plan.variants] == [("default", True)]
    assert (len(plan.trials), plan.findings) == (3, ())


def test_an_exclusion_in_part_leaves_out_all_that_match() -> None:
    plan = make_plan(
        replace(JOB, exclude=({"speculation": "ngram"}, {"nccl": "tuned", "speculation": "none"})),
        ["h1"],
    )
    assert [variant.name for variant in plan.variants] == [
        "nccl=default,speculation=none",
        "nccl=default,speculation=eagle",
        "nccl=tuned,speculation=eagle",
    ]


def test_a_later_level_wins_and_none_takes_away() -> None:
    factors = {
        "first": {
            "on": Level(
                args={"x": 1, "page_size": 2},
                env={"A": None, "B": "first"},
                simulation={"hang": True},
            )
        },
        "second": {
            "on": Level(
                args={"page_size": 64, "trust_remote_code": None},
                env={"B": "second"},
                simulation={"time_scale": 5.0},
            )
        },
    }
    job = replace(JOB, factors=factors, baseline={"first": "on", "second": "on"})
    engine = make_plan(job, ["h1"]).variants[0].engine
    assert engine.args == {"tp_size": 8, "x": 1, "page_size": 64}
    assert engine.env == {"B": "second"}
    assert engine.simulation == Simulation(time_scale=5.0, hang=True)


@pytest.mark.parametrize(
    ("args", "gpus"),
    [
        ({}, 1),
        ({"tp_size": 8}, 8),
        ({"tp_size": 4, "pp_size": 2}, 8),
        ({"tp_size": 4, "dp_size": 2}, 8),
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 8),
        ({"tp_size": 2, "device": "cpu"}, 0),
        ({"tp_size": "x"}, 1),
    ],
)
def test_gpus_come_from_the_parallel_sizes(args: dict[str, Any], gpus: int) -> None:
    assert count_needed_gpus(args) == gpus
    assert (
        make_plan(replace(JOB, engine=replace(ENGINE, args=args)), ["h1"]).variants[0].engine.gpus
        == gpus
    )


def test_gpus_that_are_written_count() -> None:
    plan = make_plan(
        replace(JOB, gpus=4, engine=replace(ENGINE, kind=EngineKind.SIMULATED)), ["h1"]
    )
    assert plan.variants[0].engine.gpus == 4
    assert [finding.code for finding in plan.findings] == ["gpus_mismatch"]


def test_the_order_of_the_first_block_is_this_one() -> None:
    """Anyone can draw it again: printf '1/h1/1/nccl=default,speculation=none' | sha256sum, and so
    on, sorted.
    """
    trials = make_plan(JOB, ["h1"]).trials[:6]
    assert [trial.variant.index for trial in trials] == [2, 1, 4, 3, 5, 6]


def test_every_host_does_all_blocks() -> None:
    trials = make_plan(JOB, ["h1", "h2"]).trials
    assert [(host, sum(trial.host == host for trial in trials)) for host in ("h1", "h2")] == [
        ("h1", 18),
        ("h2", 18),
    ]


def test_with_any_host_each_block_is_whole_on_one_host_in_turn() -> None:
    trials = make_plan(replace(JOB, hosts=HostChoice(every_host=False)), ["h1", "h2"]).trials
    assert {(trial.host, trial.block) for trial in trials} == {("h1", 1), ("h2", 2), ("h1", 3)}
    assert len(trials) == 18


def test_a_host_named_twice_counts_once() -> None:
    assert len(make_plan(JOB, ["h1", "h1"]).trials) == 18


def test_trial_ids_name_job_block_and_variant_and_the_host_where_there_are_several() -> None:
    one, two = make_plan(JOB, ["h1"]), make_plan(JOB, ["h1", "10.0.0.1:22"])
    assert trial_id("j-0a1b2c", one, one.trials[0]) == f"j-0a1b2c-b1-v{one.trials[0].variant.index}"
    ids = [trial_id("j-0a1b2c", two, trial) for trial in two.trials]
    assert len(set(ids)) == 36
    assert all("/" not in text and ":" not in text for text in ids)
    assert ids[0].endswith("-h1")


def test_a_trial_that_may_go_to_any_host_has_none_and_its_id_names_none() -> None:
    job = replace(JOB, hosts=HostChoice(every_host=False))
    plan = make_plan(job, ["h1", "h2"])
    specs = [trial_spec(job, plan, planned, 1, "j-0a1b2c") for planned in plan.trials]
    assert {spec.host for spec in specs} == {""}
    assert sorted(spec.trial_id for spec in specs) == sorted(
        f"j-0a1b2c-b{block}-v{index}" for block in (1, 2, 3) for index in range(1, 7)
    )
    other = make_plan(job, ["h3"])
    assert [
        (trial.block, trial.variant.index)
        for trial in sorted(plan.trials, key=lambda trial: trial.block)
    ] == [(trial.block, trial.variant.index) for trial in other.trials]


def test_a_trial_spec_survives_the_wire() -> None:
    plan = make_plan(JOB, ["h1"])
    planned = next(trial for trial in plan.trials if trial.variant.index == 5)
    spec = trial_spec(JOB, plan, planned, 2, "j-0a1b2c")
    assert (spec.variant, spec.levels) == (
        "nccl=tuned,speculation=eagle",
        {"nccl": "tuned", "speculation": "eagle"},
    )
    assert (spec.attempt, spec.block, spec.host, spec.job_name) == (2, planned.block, "h1", "j")
    assert (spec.engine.env, spec.engine.gpus) == ({"A": "1", "NCCL_PROTO": "LL"}, 8)
    assert from_proto(TrialSpec, to_proto(spec, trial_pb2.TrialSpec())) == spec


def test_excluding_everything_is_an_error() -> None:
    plan = make_plan(replace(JOB, exclude=({},)), ["h1"])
    assert (plan.is_refused, plan.trials, [finding.code for finding in plan.findings]) == (
        True,
        (),
        ["no_trials"],
    )


def test_excluding_the_baseline_is_an_error() -> None:
    assert codes(replace(JOB, exclude=({"nccl": "default", "speculation": "none"},))) == [
        "baseline_excluded"
    ]


def test_two_equal_variants_are_both_named() -> None:
    factors = {
        "nccl": {"default": Level(), "same": Level(env={"A": "1"}), "other": Level(env={"A": "2"})}
    }
    plan = make_plan(replace(JOB, factors=factors, baseline={"nccl": "default"}), ["h1"])
    assert [finding.message for finding in plan.findings if finding.code == "equal_variants"] == [
        "`nccl=default` and `nccl=same` launch the same server: all their arguments and variables are equal"
    ]
    assert not plan.is_refused


def test_no_host_is_an_error() -> None:
    plan = make_plan(JOB, [])
    assert (plan.is_refused, [finding.code for finding in plan.findings]) == (True, ["no_hosts"])


def test_more_than_ten_thousand_trials_are_refused() -> None:
    at_limit = replace(
        JOB,
        factors={"n": {f"l{n}": Level(env={"N": str(n)}) for n in range(100)}},
        baseline={"n": "l0"},
        launches=100,
    )
    assert (codes(at_limit), codes(replace(at_limit, launches=101))) == ([], ["too_many_trials"])


def test_factors_beyond_counting_are_refused_without_counting_them() -> None:
    factors = {f"f{n}": {f"l{m}": Level() for m in range(10)} for n in range(40)}
    assert codes(replace(JOB, factors=factors)) == ["too_many_variants"]


def test_a_finding_stands_where_the_file_has_its_key() -> None:
    job = replace(JOB, file="job.yaml", places={"exclude": (12, 3)}, exclude=({},))
    finding = make_plan(job, ["h1"]).findings[0]
    assert (finding.file, finding.line, finding.column) == ("job.yaml", 12, 3)


def test_hosts_are_chosen_by_name_and_label() -> None:
    known = {"b": {"gpu": "h200"}, "a": {"gpu": "h200", "rack": "1"}, "c": {"gpu": "b200"}}
    assert HostChoice().matching(known) == ("a", "b", "c")
    assert HostChoice(labels={"gpu": "h200"}).matching(known) == ("a", "b")
    assert HostChoice(names=("b", "c", "gone"), labels={"gpu": "h200"}).matching(known) == ("b",)


def test_the_plan_as_json_holds_variants_and_the_order() -> None:
    plan = make_plan(JOB, ["h1"])
    told = json.loads(json.dumps(plan.to_json()))
    assert (told["job"], told["engine"], told["time_scale"], told["blocks"], told["seed"]) == (
        "j",
        "sglang",
        1.0,
        3,
        1,
    )
    assert told["variants"][3] | {"args": {}} == {
        "name": "nccl=tuned,speculation=none",
        "baseline": False,
        "levels": {"nccl": "tuned", "speculation": "none"},
        "gpus": 8,
        "args": {},
        "env": {"A": "1", "NCCL_PROTO": "LL"},
    }
    assert told["trials"][0] == {
        "host": "h1",
        "block": 1,
        "order": 1,
        "variant": plan.trials[0].variant.name,
    }


def test_a_small_model_on_a_cpu_is_estimated_in_minutes() -> None:
    """Of examples/sglang-cpu.yaml, which took 188 s on two cores."""
    file = Path(__file__).parents[2] / "examples" / "sglang-cpu.yaml"
    job = load_job(file.read_bytes(), file.name).job
    assert 60 < estimate_seconds(make_plan(job, ["h1"]), job) < 2 * 188


def test_the_estimate_grows_with_launches_and_not_with_hosts_side_by_side() -> None:
    def seconds(job: Job, *hosts: str) -> float:
        return estimate_seconds(make_plan(job, hosts), job)

    plain = replace(JOB, engine=replace(ENGINE, proof="off"))
    assert seconds(replace(plain, launches=6), "h1") == pytest.approx(2 * seconds(plain, "h1"))
    assert seconds(plain, "h1", "h2") == pytest.approx(seconds(plain, "h1"))
    assert gpu_hours(make_plan(plain, ["h1"]), plain) == pytest.approx(
        8 * seconds(plain, "h1") / 3600
    )


def test_the_estimate_holds_the_witnesses_once_for_each_variant() -> None:
    plain = replace(JOB, engine=replace(ENGINE, proof="off"))
    extra = estimate_seconds(make_plan(JOB, ["h1"]), JOB) - estimate_seconds(
        make_plan(plain, ["h1"]), plain
    )
    more = replace(JOB, launches=9), replace(plain, launches=9)
    assert extra > 4 * 300
    assert estimate_seconds(make_plan(more[0], ["h1"]), more[0]) - estimate_seconds(
        make_plan(more[1], ["h1"]), more[1]
    ) == pytest.approx(extra)


def test_a_simulated_job_costs_no_gpu_hours_and_runs_at_its_time_scale() -> None:
    simulated = replace(
        JOB,
        engine=replace(ENGINE, kind=EngineKind.SIMULATED, simulation=Simulation(time_scale=20.0)),
    )
    plan = make_plan(simulated, ["h1"])
    assert gpu_hours(plan, simulated) == 0
    assert estimate_seconds(plan, simulated) < estimate_seconds(make_plan(JOB, ["h1"]), JOB) / 20


def test_an_open_loop_lasts_its_duration() -> None:
    job = replace(
        JOB,
        workloads=(Workload(name="open", rate_per_s=4, duration_s=3600, output_tokens=10),),
        launches=1,
    )
    assert estimate_seconds(make_plan(job, ["h1"]), job) > 6 * 5 * 3600
