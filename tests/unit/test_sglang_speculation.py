"""What SGLang makes of speculation arguments and parallel sizes, by version."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_knowledge.release import Release
from fleet_knowledge.server_configuration import ServerConfiguration
from fleet_knowledge.sglang import parallelism
from fleet_knowledge.sglang.effective_configuration import resolve_configuration
from fleet_knowledge.sglang.speculation.algorithms import (
    ALGORITHMS,
    find_own_layers,
    is_eagle3_config,
    model_family,
    names_eagle3,
    names_older_eagle,
)
from fleet_knowledge.sglang.speculation.resolved_arguments import (
    request_cap,
    resolve_speculation,
    tree_capacity,
)
from fleet_knowledge.sglang.speculation.speculation_rules import apply_speculation_rules
from fleet_knowledge.sglang.speculation.sweep_notation import (
    distinct_servers,
    expand_sweep,
    split_entries,
)

DRAFT = "speculative_draft_model_path"


def asked(
    algorithm: str = "EAGLE3",
    sizes: tuple[int | None, ...] = (3, 1, 4),
    *,
    version: str = "",
    **more: Any,
) -> ServerConfiguration:
    names = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    given_sizes = {name: size for name, size in zip(names, sizes, strict=True) if size is not None}
    model = more.pop("model", "/models/qwen")
    args = {"speculative_algorithm": algorithm, DRAFT: "/d/eagle3", **given_sizes, **more}
    return ServerConfiguration(
        {name: value for name, value in args.items() if value is not None},
        {},
        model,
        release=Release.parse(version),
    )


def codes(configuration: ServerConfiguration) -> list[str]:
    return [f"{remark.severity} {remark.code}" for remark in apply_speculation_rules(configuration)]


def test_a_sound_chain_has_nothing_to_tell() -> None:
    assert codes(asked()) == []


@pytest.mark.parametrize(
    ("sizes", "version", "model", "run"),
    [
        ((3, 1, 8), "", "/m/qwen", (3, 1, 4)), ((3, 1, None), "", "/m/qwen", (3, 1, 4)), ((5, 4, 16), "", "/m/qwen", (5, 4, 16)),
        ((None, None, None), "", "/m/qwen", (3, 1, 4)), ((None, None, None), "", "meta-llama/Llama-3.1-8B", (5, 4, 8)),
        ((None, None, None), "0.4.6.post5", "/m/qwen", (5, 4, 8)), ((None, None, None), "", "xai-org/grok-1", (5, 4, 8)),
    ],
)  # fmt: skip
def test_the_server_runs_these_sizes(
    sizes: tuple[int | None, ...], version: str, model: str, run: tuple[int, int, int]
) -> None:
    found = resolve_speculation(asked(sizes=sizes, version=version, model=model))
    assert (found.steps, found.topk, found.draft_tokens) == run


@pytest.mark.parametrize(
    ("steps", "topk", "capacity"),
    [(1, 1, 1), (3, 1, 3), (3, 4, 36), (5, 4, 68), (2, 8, 72)],
)
def test_the_tree_holds_topk_and_topk_squared_for_each_further_step(
    steps: int, topk: int, capacity: int
) -> None:
    assert tree_capacity(steps, topk) == capacity
    assert "warning spec_tree_overflow" not in codes(
        asked(sizes=(steps, max(topk, 2), tree_capacity(steps, max(topk, 2)) + 1))
    )
    assert "warning spec_tree_overflow" in codes(
        asked(sizes=(steps, max(topk, 2), tree_capacity(steps, max(topk, 2)) + 2))
    )


def test_one_verification_yields_the_steps_and_one_token_at_most() -> None:
    assert resolve_speculation(asked()).max_accept_length == 4
    assert resolve_speculation(asked(sizes=(6, 2, 4))).max_accept_length == 4
    assert resolve_speculation(asked("NGRAM", (None, None, 12))).max_accept_length == 12


@pytest.mark.parametrize(
    ("algorithm", "more", "expected"),
    [
        ("STANDALONE", {"enable_dp_attention": True, "dp_size": 2}, ["error spec_excludes"]),
        ("STANDALONE", {"attn_dp_size": 2}, ["error spec_excludes"]),
        (
            "EAGLE",
            {"pp_size": 2, "model": "deepseek-ai/DeepSeek-R1", DRAFT: None},
            ["warning spec_excludes"],
        ),
        (
            "EAGLE",
            {"pp_size": 2, "model": "deepseek-ai/DeepSeek-R1", DRAFT: None, "version": "0.5.23"},
            [],
        ),
        ("EAGLE3", {"pp_size": 2}, ["error spec_excludes"]),
        (
            "NGRAM",
            {DRAFT: None, "page_size": 16, "attention_backend": "triton"},
            ["error spec_paged_tree"],
        ),
        ("NGRAM", {DRAFT: None, "page_size": 16, "speculative_ngram_max_bfs_breadth": 1}, []),
        ("NGRAM", {DRAFT: None, "device": "cpu", "version": "0.5.9"}, ["error spec_excludes"]),
        ("NGRAM", {DRAFT: None, "device": "cpu", "version": "0.5.23"}, []),
        ("DFLASH", {"sizes": (None, None, 8), "pp_size": 2}, ["error spec_excludes"]),
        ("DFLASH", {"sizes": (None, None, 8), DRAFT: None}, ["error spec_draft_missing"]),
        ("DFLASH", {"sizes": (4, 1, 8)}, ["warning spec_adjusted"]),
        ("UNO", {}, ["error spec_draft_unused"]),
    ],
)
def test_an_algorithm_excludes_what_sglang_refuses_beside_it(
    algorithm: str, more: dict[str, Any], expected: list[str]
) -> None:
    assert codes(asked(algorithm, **more)) == expected


def test_speculation_caps_requests_unless_the_job_says_how_many() -> None:
    assert [
        request_cap(asked()),
        request_cap(asked(max_running_requests=16)),
        request_cap(ServerConfiguration()),
    ] == [48, None, None]
    assert [request_cap(asked(version=version)) for version in ("0.4.3", "0.4.4", "0.5.9")] == [
        None,
        32,
        48,
    ]


@pytest.mark.parametrize(
    ("path", "is_eagle3", "is_older"),
    [
        ("lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B", True, False), ("/models/AQ-MedAI/Kimi-K2-eagle3", True, False),
        ("/d/eagle-3/model", True, False), ("nvidia/Llama-4-Eagle3", True, False), ("yuhuili/EAGLE-LLaMA3-Instruct-8B", False, True),
        ("yuhuili/EAGLE3-LLaMA3.1", True, False), ("lab/eagle2-qwen", False, True), ("/models/draft", False, False),
        ("/models/eagles/draft", False, False), ("org/EAGLE-Llama-3.1", False, True), ("/eagle3/a/b/draft", False, False),
    ],
)  # fmt: skip
def test_the_name_of_a_draft_tells_its_kind(path: str, is_eagle3: bool, is_older: bool) -> None:
    assert (names_eagle3(path), names_older_eagle(path)) == (is_eagle3, is_older)


def test_the_configuration_of_a_draft_tells_its_kind() -> None:
    assert is_eagle3_config({"architectures": ["LlamaForCausalLMEagle3"]})
    assert is_eagle3_config(
        {
            "architectures": ["LlamaForCausalLM"],
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]},
        }
    )
    assert not is_eagle3_config({"architectures": ["LlamaForCausalLMEagle"]})
    assert not is_eagle3_config({"architectures": "x", "eagle_config": None})


@pytest.mark.parametrize(
    ("model", "has_own", "architecture"),
    [
        ("deepseek-ai/DeepSeek-R1", True, "DeepseekV3ForCausalLM"), ("/models/DS-R1", True, "DeepseekV3ForCausalLM"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", True, "DeepseekV32ForCausalLM"), ("zai-org/GLM-4.5-Air", True, "Glm4MoeForCausalLM"),
        ("Qwen/Qwen3-Next-80B-A3B", True, "Qwen3NextForCausalLM"), ("Qwen/Qwen2.5-72B-Instruct", False, ""),
        ("meta-llama/Llama-3.3-70B", False, "LlamaForCausalLM"), ("moonshotai/Kimi-K2.5", False, ""),
    ],
)  # fmt: skip
def test_a_models_name_tells_whether_it_drafts_for_itself(
    model: str, has_own: bool, architecture: str
) -> None:
    assert (find_own_layers(model) is not None, model_family(model)) == (has_own, architecture)


def test_every_algorithm_names_its_source() -> None:
    assert [row.name for row in ALGORITHMS.values() if not row.source] == []


@pytest.mark.parametrize(
    ("args", "gpus", "nccl"),
    [
        ({}, 1, False), ({"tp_size": 8}, 8, True), ({"tp_size": 4, "pp_size": 2}, 8, True), ({"dp_size": 4}, 4, False),
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 8, True), ({"tp_size": 8, "attn_dp_size": 8}, 8, True),
        ({"tp_size": 2, "device": "cpu"}, 0, False), ({"tp_size": "x"}, 1, False), ({"tp_size": "2"}, 2, True),
    ],
)  # fmt: skip
def test_parallel_sizes_take_gpus_and_need_nccl(
    args: dict[str, Any], gpus: int, nccl: bool
) -> None:
    assert (parallelism.count_needed_gpus(args), parallelism.exchanges_over_nccl(args)) == (
        gpus,
        nccl,
    )


@pytest.mark.parametrize(
    ("args", "gpus", "nodes", "expected"),
    [
        ({"tp_size": 16}, 8, 2, []), ({"tp_size": 16}, 8, 1, ["too_few_gpus"]),
        ({"tp_size": 6}, 4, 4, ["gpus_mismatch", "parallel_sizes_disagree"]),
        ({"tp_size": 4, "dp_size": 2}, 4, 2, ["parallel_sizes_disagree"]), ({"device": "cpu"}, 1, 1, ["gpus_mismatch"]),
        ({"tp_size": 8, "ep_size": 8}, 8, 1, []), ({"tp_size": 8, "ep_size": 3}, 8, 1, ["parallel_sizes_disagree"]),
        ({"tp_size": 2, "base_gpu_id": 6}, 8, 1, ["gpus_mismatch"]), ({"tp_size": 2, "base_gpu_id": 1}, None, 1, ["gpu_out_of_range"]),
        ({"tp_size": 4, "attn_dp_size": 2, "dp_size": 2}, None, 1, ["parallel_sizes_disagree"]),
    ],
)  # fmt: skip
def test_parallel_sizes_that_do_not_go_together_are_told(
    args: dict[str, Any], gpus: int | None, nodes: int, expected: list[str]
) -> None:
    assert [
        remark.code
        for remark in parallelism.apply_parallelism_rules(
            ServerConfiguration(args, gpus=gpus, nodes=nodes)
        )
    ] == expected


def test_two_spellings_of_one_configuration_take_the_same_effect() -> None:
    same = [
        asked("EAGLE3", (3, 1, 4)),
        asked("eagle3", (3, 1, 9)),
        asked("EAGLE3", (3, 1, None), speculative_accept_threshold_acc=1),
    ]
    assert len({resolve_configuration(one).identity for one in same}) == 1
    assert (
        resolve_configuration(asked("EAGLE3", (2, 1, 3))).identity
        != resolve_configuration(same[0]).identity
    )


def test_what_is_in_vain_has_a_reason() -> None:
    found = resolve_configuration(
        ServerConfiguration(
            {"page_size": 1, "base_gpu_id": 0},
            {"NCCL_PROTO": "LL", "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        )
    )
    assert [each.subject for each in found.ineffective] == [
        "args.base_gpu_id",
        "env.NCCL_PROTO",
        "env.CUDA_DEVICE_MAX_CONNECTIONS",
    ]
    assert all(each.why for each in found.ineffective)


@pytest.mark.parametrize(
    "entry", ["1,3,1", "x", "", "1,3,0,4", "1,3,4,0", "0,3,1,4", "1,-1,1,4", "1.5,3,1,4"]
)
def test_an_entry_of_a_sweep_that_nothing_can_be_launched_for_is_an_error(entry: str) -> None:
    [point] = expand_sweep([entry])
    assert point.is_invalid and entry in point.to_json()["text"]


@pytest.mark.parametrize(
    "text",
    [
        "1,0,0,0 1,3,1,4",
        '["1,0,0,0","1,3,1,4"]',
        "'1,0,0,0' '1,3,1,4'",
        "1,0,0,0;1,3,1,4",
        "1,0,0,0\n1,3,1,4",
    ],
)
def test_a_sweep_is_read_as_people_paste_it(text: str) -> None:
    assert split_entries(text) == ("1,0,0,0", "1,3,1,4")


def test_batch_sizes_share_a_server() -> None:
    assert [
        point.launch_key
        for point in distinct_servers(expand_sweep(["1,0,0,0", "8,0,0,0", "1,3,1,4", "8,3,1,9"]))
    ] == [(0, 0, 0), (3, 1, 4)]


@given(st.lists(st.text(max_size=12), max_size=5))
def test_any_text_is_expanded_or_refused(entries: list[str]) -> None:
    assert len(expand_sweep(entries)) == len(entries)


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 70),
    st.text(max_size=8),
    st.lists(st.integers(), max_size=2),
)
_NAMES = ("speculative_algorithm", DRAFT, "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens",
          "page_size", "attention_backend", "tp_size", "pp_size", "dp_size", "ep_size", "device",
          "enable_dp_attention", "max_running_requests")  # fmt: skip


@given(
    st.dictionaries(st.sampled_from(_NAMES), _VALUES),
    st.sampled_from(["EAGLE", "EAGLE3", "NGRAM", "DSPARK", "NEXTN"]),
)
def test_any_arguments_are_judged(args: dict[str, Any], algorithm: str) -> None:
    for configuration in (
        ServerConfiguration(args),
        ServerConfiguration({**args, "speculative_algorithm": algorithm}),
    ):
        assert all(
            each.message
            for each in (
                *apply_speculation_rules(configuration),
                *parallelism.apply_parallelism_rules(configuration),
            )
        )
        assert resolve_configuration(configuration).identity


def test_a_size_that_is_refused_is_not_also_told_to_be_adjusted() -> None:
    assert codes(asked(sizes=(-1, 1, 4))) == ["error spec_bad_size"]


def test_a_backend_that_only_newer_versions_can_use_is_told_with_the_version() -> None:
    (told,) = apply_speculation_rules(asked(sizes=(3, 4, 8), page_size=64, attention_backend="fa3"))
    assert (told.severity, told.code) == (
        "warning",
        "spec_paged_tree",
    ) and "from SGLang 0.5.6" in told.message
    assert (
        codes(asked(sizes=(3, 4, 8), page_size=64, attention_backend="fa3", version="0.5.9")) == []
    )
    assert codes(
        asked(sizes=(3, 4, 8), page_size=64, attention_backend="fa3", version="0.5.4")
    ) == ["error spec_paged_tree"]


def test_a_model_that_drafts_for_itself_whole_gains_nothing() -> None:
    assert codes(asked("STANDALONE", model="/d/eagle3")) == ["info spec_draft_is_model"]
    assert codes(asked("STANDALONE", model="/d/other")) == []


def test_replicas_that_do_not_fit_may_be_meant_as_data_parallel_attention() -> None:
    (told,) = parallelism.apply_parallelism_rules(
        ServerConfiguration({"tp_size": 8, "dp_size": 8}, gpus=8)
    )
    assert told.code == "too_few_gpus" and "enable_dp_attention: true" in told.hint
    (other,) = parallelism.apply_parallelism_rules(ServerConfiguration({"tp_size": 16}, gpus=8))
    assert "enable_dp_attention" not in other.hint


@pytest.mark.parametrize("text", ["--3", "\u00b3", "-", "", "9" * 5000, "3.0"])
def test_a_text_that_only_looks_like_a_number_is_none(text: str) -> None:
    assert (
        ServerConfiguration({"speculative_num_steps": text}).number("speculative_num_steps", 7) == 7
    )
