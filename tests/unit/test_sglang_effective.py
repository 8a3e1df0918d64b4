"""Owns the promises of the comparison between what was asked for and what SGLang shows."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_agent.engines.sglang.proof.effective_args import (
    add_versions,
    build_proof,
    compare_arguments,
    visible_args,
)
from fleet_agent.engines.sglang.proof.nccl_gates import NcclEvidence
from fleet_knowledge.nccl.log.nccl_reader import NcclReader
from fleet_protos.trial_types import Gate, GateEffect

LOG = "h:1:1 [0] NCCL INFO NCCL_PROTO set by environment to LL\nh:1:1 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 16777216.\n"


def short(found: tuple[Gate, ...]) -> list[tuple[str, GateEffect]]:
    return [(gate.code, gate.effect) for gate in found]


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (8, 8),
        ("0.9", 0.9),
        (0.90, 0.9),
        (True, True),
        ([1, 2], [1, 2]),
        ("lora", ["lora"]),
        ({"a": 1}, '{"a": 1}'),
        ('{"a":1}', {"a": 1}),
        ("Triton", "Triton"),
        (None, 7),
        (False, False),
        (False, None),
    ],
)
def test_an_argument_in_effect_as_asked_trips_no_gate(asked: object, shown: object) -> None:
    assert compare_arguments({"x": asked}, {"x": shown}) == ()


@pytest.mark.parametrize(
    ("asked", "shown"),
    [(8, 4), (True, False), (False, True), ([1, 2], [1]), ("fa3", "triton"), ("a", None)],
)
def test_any_other_value_voids_the_trial(asked: object, shown: object) -> None:
    assert short(compare_arguments({"x": asked}, {"x": shown})) == [
        ("args_changed_by_server", GateEffect.VOID_TRIAL)
    ]


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({"speculative_algorithm": "NEXTN"}, {"speculative_algorithm": "EAGLE"}),
        (
            {"speculative_num_draft_tokens": 16},
            {
                "speculative_num_steps": 5,
                "speculative_eagle_topk": 1,
                "speculative_num_draft_tokens": 6,
            },
        ),
        (
            {"speculative_num_steps": 3},
            {"speculative_num_steps": 1, "speculative_algorithm": "DFLASH"},
        ),
        (
            {"speculative_eagle_topk": 4},
            {"speculative_eagle_topk": 1, "speculative_algorithm": "DSPARK"},
        ),
        ({"page_size": 1}, {"page_size": 64, "attention_backend": "flashmla"}),
        ({"kv_cache_dtype": "bf16"}, {"kv_cache_dtype": "bfloat16"}),
        (
            {"page_size": 1},
            {"page_size": 128, "attention_backend": "triton", "decode_attention_backend": "fa4"},
        ),
        ({"speculative_algorithm": "NEXTN"}, {"speculative_algorithm": "FROZEN_KV_MTP"}),
        (
            {"schedule_conservativeness": 0.8},
            {"schedule_conservativeness": 0.24, "enable_dp_attention": True},
        ),
        (
            {"chunked_prefill_size": 8192},
            {
                "chunked_prefill_size": 1024,
                "enable_dp_attention": True,
                "dp_size": 8,
                "attn_dp_size": 8,
            },
        ),
        (
            {"chunked_prefill_size": 8192},
            {"chunked_prefill_size": 1024, "enable_dp_attention": True, "dp_size": 8},
        ),
        ({"mem_fraction_static": 0.8}, {"mem_fraction_static": 0.68, "attention_backend": "aiter"}),
    ],
)
def test_a_change_that_sglang_is_known_to_make_is_flagged(
    asked: dict[str, Any], shown: dict[str, Any]
) -> None:
    assert short(compare_arguments(asked, shown)) == [("args_changed_by_server", GateEffect.FLAG)]


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({"speculative_algorithm": "EAGLE3"}, {"speculative_algorithm": "EAGLE"}),
        (
            {"speculative_num_draft_tokens": 16},
            {
                "speculative_num_steps": 5,
                "speculative_eagle_topk": 4,
                "speculative_num_draft_tokens": 6,
            },
        ),
        (
            {"speculative_num_steps": 3},
            {"speculative_num_steps": 1, "speculative_algorithm": "EAGLE3"},
        ),
        ({"page_size": 1}, {"page_size": 64, "attention_backend": "fa3"}),
        (
            {"schedule_conservativeness": 0.8},
            {"schedule_conservativeness": 0.5, "enable_dp_attention": True},
        ),
        (
            {"chunked_prefill_size": 8192},
            {"chunked_prefill_size": 4096, "enable_dp_attention": True, "dp_size": 8},
        ),
        (
            {"chunked_prefill_size": 8192},
            {"chunked_prefill_size": 1024, "enable_dp_attention": False, "dp_size": 8},
        ),
        (
            {"mem_fraction_static": 0.8},
            {"mem_fraction_static": 0.68, "attention_backend": "triton"},
        ),
    ],
)
def test_a_change_that_only_resembles_a_known_one_voids_the_trial(
    asked: dict[str, Any], shown: dict[str, Any]
) -> None:
    assert short(compare_arguments(asked, shown)) == [
        ("args_changed_by_server", GateEffect.VOID_TRIAL)
    ]


def test_an_argument_that_is_not_shown_is_flagged() -> None:
    assert short(compare_arguments({"new_thing": 8}, {})) == [
        ("args_not_shown_by_server", GateEffect.FLAG)
    ]


def test_state_and_secrets_are_no_part_of_the_configuration() -> None:
    shown = {
        "tp_size": 8,
        "api_key": "sk-1",
        "admin_api_key": None,
        "internal_states": [{}],
        "status": "ready",
    }
    assert visible_args(shown) == {"tp_size": 8, "api_key": "…", "admin_api_key": None}


def test_a_proof_names_versions_arguments_and_what_nccl_saw() -> None:
    reader = NcclReader()
    for line in (*LOG.splitlines(), "NCCL version 2.27.5+cuda12.9"):
        reader.feed(line)
    found = build_proof(
        {"tp_size": 8},
        {"NCCL_PROTO": "LL"},
        {"tp_size": 8, "version": "0.5.23"},
        NcclEvidence(facts=reader.facts(), ranks=8),
    )
    assert found.versions == {"sglang": "0.5.23", "nccl": "2.27.5+cuda12.9"}
    assert found.env == {"NCCL_PROTO": "LL", "NCCL_BUFFSIZE": "16777216"}
    assert (found.gates, found.effective_args["tp_size"]) == ((), 8)
    assert found.nccl["settings"]["NCCL_PROTO"] == ["LL"]


def test_what_the_server_says_of_its_versions_counts_more_than_what_is_installed() -> None:
    proved = add_versions(
        build_proof({}, {}, {"version": "0.5.23"}, NcclEvidence()),
        {"sglang": "0.5.9", "torch": "2.9.1"},
    )
    assert proved.versions == {"sglang": "0.5.23", "torch": "2.9.1"}
    assert proved.nccl == {}
