"""Owns the promises of the table of changes that SGLang makes to its own arguments."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_knowledge.sglang.argument_changes import KNOWN_CHANGES, ArgumentChange, find_known_change

# (argument, asked, shown, all that is shown, a version in which it is known, one in which it is
# not)
CHANGES: list[tuple[str, Any, Any, dict[str, Any], str, str]] = [
    ("speculative_algorithm", "NEXTN", "EAGLE", {}, "0.5.9", "0.4.3"),
    ("speculative_algorithm", "NEXTN", "FROZEN_KV_MTP", {}, "0.5.23", "0.5.9"),
    (
        "speculative_num_draft_tokens",
        16,
        6,
        {"speculative_num_steps": 5, "speculative_eagle_topk": 1},
        "0.4.6.post5",
        "0.4.4",
    ),
    ("speculative_num_steps", 3, 1, {"speculative_algorithm": "DFLASH"}, "0.5.12", "0.5.9"),
    ("speculative_num_steps", 3, 0, {"speculative_algorithm": "NGRAM"}, "0.5.23", "0.5.1"),
    (
        "speculative_eagle_topk",
        1,
        10,
        {"speculative_algorithm": "NGRAM", "speculative_ngram_max_bfs_breadth": 10},
        "0.5.9",
        "0.5.1",
    ),
    ("enable_mixed_chunk", True, False, {"speculative_algorithm": "EAGLE3"}, "0.5.9", "0.4.6"),
    ("disable_overlap_schedule", False, True, {"pp_size": 2}, "0.5.12", "0.4.1"),
    ("disable_overlap_schedule", False, True, {"speculative_algorithm": "EAGLE"}, "0.4.6", "0.4.3"),
    ("page_size", 1, 64, {"attention_backend": "flashmla"}, "0.4.6", "0.4.4"),
    ("page_size", 16, 32, {"attention_backend": "trtllm_mla"}, "0.5.9", "0.4.4"),
    ("kv_cache_dtype", "bf16", "bfloat16", {}, "0.5.3", "0.4.9"),
    ("enable_dp_attention", True, False, {"dp_size": 1}, "0.5.9", "0.5.1"),
    ("ep_size", 1, 8, {"tp_size": 8, "moe_a2a_backend": "deepep"}, "0.5.9", "0.4.0"),
    ("ep_size", 2, 8, {"tp_size": 8, "enable_deepep_moe": True}, "0.4.9", "0.4.0"),
]


@pytest.mark.parametrize(
    ("name", "asked", "shown", "rest", "known", "unknown"), CHANGES, ids=[row[0] for row in CHANGES]
)
def test_a_change_is_known_in_its_versions_and_in_no_other(
    name: str, asked: Any, shown: Any, rest: dict[str, Any], known: str, unknown: str
) -> None:
    change = ArgumentChange(asked, shown, {**rest, name: shown})
    assert find_known_change(name, change, known) is not None
    assert find_known_change(name, change, "") is not None, (
        "a version that cannot be read is any version"
    )
    assert find_known_change(name, change, unknown) is None


@pytest.mark.parametrize(
    ("name", "asked", "shown", "rest"),
    [
        ("ep_size", 2, 8, {"tp_size": 8, "moe_a2a_backend": "none"}),
        ("enable_mixed_chunk", True, False, {"speculative_algorithm": None}),
        ("disable_overlap_schedule", False, True, {"pp_size": 1}),
        ("enable_dp_attention", True, False, {"dp_size": 8}),
        ("schedule_conservativeness", "much", "little", {"enable_dp_attention": True}),
        ("chunked_prefill_size", 8192, None, {"enable_dp_attention": True, "dp_size": 0}),
    ],
)
def test_what_only_resembles_a_change_is_not_explained(
    name: str, asked: Any, shown: Any, rest: dict[str, Any]
) -> None:
    assert find_known_change(name, ArgumentChange(asked, shown, rest), "0.5.23") is None


def test_every_change_says_where_it_was_seen_and_from_which_version() -> None:
    assert all(change.source and change.why and change.versions.first for change in KNOWN_CHANGES)
