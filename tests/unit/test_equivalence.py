"""Variants that run the same server as another: which they are, what leaves them out, and that
nothing else goes.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_controller.core.job import Job
from fleet_controller.job_file.job_loader import LoadedJob, load_job
from fleet_controller.job_file.prune_variants import prune_loaded_job, with_exclusions
from fleet_controller.planning.equivalence import (
    EquivalentVariant,
    equivalent_variants,
    exclusions,
    prune_job,
)
from fleet_controller.planning.variants import make_variants
from fleet_controller.yaml.findings import JobRejected
from fleet_protos.errors import ConfigError

CHAIN = {
    "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_path": "/d/eagle3",
    "speculative_num_steps": 3,
}
FACTORS: dict[str, Any] = {
    "size": {"two": {"args": {"tp_size": 2}}, "one": {"args": {"tp_size": 1}}},
    "nccl": {"default": {}, "tuned": {"env": {"NCCL_PROTO": "LL"}}},
    "spec": {
        "none": {},
        "four": {"args": {**CHAIN, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}},
        "eight": {
            "args": {**CHAIN, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 8}
        },
    },
}


def loaded(
    factors: dict[str, Any], baseline: dict[str, str] | None = None, **engine: Any
) -> LoadedJob:
    job: dict[str, Any] = {
        "apiVersion": "benchfleet/v1",
        "kind": "Job",
        "name": "arms",
        "model": {"path": "/m/llama"},
    }
    job["engine"] = {"kind": "sglang", "python": "python3", **engine}
    job |= {
        "factors": factors,
        "baseline": baseline or {factor: next(iter(levels)) for factor, levels in factors.items()},
    }
    return load_job(
        json.dumps(job | {"workloads": {"s": {"concurrency": 1, "output_tokens": 5}}}), "job.yaml"
    )


def found(job: Job) -> tuple[EquivalentVariant, ...]:
    return equivalent_variants(job, make_variants(job))


def test_arms_that_cannot_have_an_effect_are_found_with_their_reason() -> None:
    told = {
        twin.variant.name: (twin.same_as.name, twin.settings) for twin in found(loaded(FACTORS).job)
    }
    assert told["size=two,nccl=default,spec=eight"] == (
        "size=two,nccl=default,spec=four",
        ("args.speculative_num_draft_tokens",),
    )
    assert told["size=one,nccl=tuned,spec=none"] == (
        "size=one,nccl=default,spec=none",
        ("env.NCCL_PROTO",),
    )
    assert "size=two,nccl=tuned,spec=none" not in told
    assert len(told) == 6


def test_the_entries_leave_out_the_arms_and_nothing_else() -> None:
    job = loaded(FACTORS).job
    left_out = found(job)
    assert exclusions(left_out) == ({"spec": "eight"}, {"nccl": "tuned", "size": "one"})
    gone = {variant.name for variant in make_variants(job)} - {
        variant.name for variant in make_variants(prune_job(job, left_out))
    }
    assert gone == {twin.variant.name for twin in left_out}


def test_the_baseline_is_kept_though_it_stands_last() -> None:
    [twin] = found(loaded({"spec": FACTORS["spec"]}, {"spec": "eight"}, args={"tp_size": 2}).job)
    assert (twin.variant.name, twin.same_as.name) == ("spec=four", "spec=eight")
    assert "sets 8" in twin.why


def test_arms_written_alike_are_left_to_the_user() -> None:
    assert found(loaded({"aa": {"first": {}, "second": {}}}).job) == ()


def test_another_engine_has_no_such_arms() -> None:
    job = loaded({"spec": FACTORS["spec"]}, kind="simulated", python=None).job
    assert found(job) == ()


@pytest.mark.parametrize(
    ("level", "reason"),
    [
        ({"env": {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}}, "SGLang sets this variable itself"),
        ({"args": {"base_gpu_id": 0}}, "default"),
        ({"args": {"speculative_num_steps": 3}}, "does not speculate"),
        ({"env": {"SGLANG_SIMULATE_ACC_LEN": "3"}}, "does not speculate"),
    ],
)
def test_a_level_that_changes_nothing_says_why(level: dict[str, Any], reason: str) -> None:
    [twin] = found(loaded({"arm": {"plain": {}, "vain": level}}).job)
    assert reason in twin.why


@pytest.mark.parametrize(
    "level",
    [{"env": {"NCCL_PROTO": "LL"}}, {"env": {"NCCL_CUMEM_ENABLE": "1"}}, {"args": {"page_size": 16}}, {"args": {"unheard_of": 1}},
     {"env": {"UNHEARD_OF": "1"}}, {"args": {"disable_radix_cache": True}}],
)  # fmt: skip
def test_a_level_that_may_change_something_is_kept(level: dict[str, Any]) -> None:
    assert found(loaded({"arm": {"plain": {}, "other": level}}, args={"tp_size": 2}).job) == ()


@given(
    st.lists(st.sampled_from(["A", "B", "C", "D"]), min_size=1, max_size=3, unique=True),
    st.integers(0, 2),
)
def test_pruning_leaves_the_baseline_and_one_arm_of_each_effect(vain: list[str], real: int) -> None:
    levels = {"plain": {}} | {
        name: {"env": {"CUDA_DEVICE_MAX_CONNECTIONS": str(index)}}
        for index, name in enumerate(vain)
    }
    other = {
        f"r{index}": {"args": {"max_running_requests": index + 1}} for index in range(real + 1)
    }
    job = loaded({"vain": levels, "real": other}).job
    kept = make_variants(prune_job(job, found(job)))
    assert [variant.levels for variant in kept] == [
        {"vain": "plain", "real": name} for name in other
    ]
    assert sum(variant.is_baseline for variant in kept) == 1


def test_a_pruned_file_keeps_its_comments_and_what_it_excluded() -> None:
    text = "# mine\nname: x # a name\nexclude:\n- {a: b}\nengine: {env: {N: 0x10}}\n"
    changed = with_exclusions(text, [{"c": "d"}])
    assert "# mine" in changed and "# a name" in changed and "0x10" in changed
    assert changed.index("{a: b}") < changed.index("{c: d}")


@pytest.mark.parametrize("text", ["- a list", "a: [", ""])
def test_a_text_that_is_no_job_is_not_changed(text: str) -> None:
    with pytest.raises(ConfigError, match=r"not a mapping|cannot be changed"):
        with_exclusions(text, [{"a": "b"}])


def test_a_pruned_job_has_no_arm_without_effect_left() -> None:
    result = prune_loaded_job(loaded(FACTORS))
    assert len(result.left_out) == 6
    assert [
        finding.code for finding in result.loaded.findings if finding.code == "arm_without_effect"
    ] == []
    assert prune_loaded_job(result.loaded).left_out == ()


def test_a_job_whose_arms_all_have_an_effect_is_not_touched() -> None:
    job = loaded({"size": FACTORS["size"]})
    assert prune_loaded_job(job).loaded is job


def test_all_combinations_of_the_factors_are_either_kept_or_told() -> None:
    job = loaded(FACTORS).job
    combinations = itertools.product(*FACTORS.values())
    names = {
        ",".join(f"{factor}={level}" for factor, level in zip(FACTORS, levels, strict=True))
        for levels in combinations
    }
    kept = {variant.name for variant in make_variants(prune_job(job, found(job)))}
    assert kept | {twin.variant.name for twin in found(job)} == names


def test_a_draft_whose_configuration_says_eagle3_is_refused_under_eagle(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"]}))
    args = {
        **CHAIN,
        "speculative_algorithm": "EAGLE",
        "speculative_draft_model_path": str(tmp_path),
    }
    sizes = {"speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}
    with pytest.raises(JobRejected, match=r"config\.json says EAGLE-3"):
        loaded({"a": {"x": {}, "y": {"args": {"tp_size": 2}}}}, args={**args, **sizes})
    (tmp_path / "config.json").write_text("no JSON")
    assert (
        loaded({"a": {"x": {}, "y": {"args": {"tp_size": 2}}}}, args={**args, **sizes}).findings
        == ()
    )
