"""Lists changes that SGLang makes to its own arguments and that do not change what a job means.
Each row names versions and sources.

A row describes an argument that the job sets and that the server reports with another value. A
change without a row counts as a changed configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_knowledge.release import Release, VersionRange

_BACKENDS = (
    "attention_backend",
    "decode_attention_backend",
    "prefill_attention_backend",
    "speculative_draft_attention_backend",
)
_EXPERT_BACKENDS = ("deepep", "mooncake", "nixl", "ascend_fuseep", "flashinfer", "mori", "megamoe")


@dataclass(frozen=True, slots=True)
class ArgumentChange:
    """A difference between an argument as the job requests it (`value`) and as the server reports
    it (`shown`). `all_shown` has all arguments that the server reports.
    """

    value: Any
    shown: Any
    all_shown: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KnownChange:
    """A change that SGLang makes by itself.

    `versions` are the versions in which it was found. An open end means up to 0.5.23, the newest
    release read. `holds` returns whether the row explains a given change.
    """

    argument: str
    versions: VersionRange
    source: str
    why: str
    holds: Callable[[ArgumentChange], bool]


def find_known_change(name: str, change: ArgumentChange, version: str) -> KnownChange | None:
    """Return the row that explains the change in `version`, or None.

    If `version` cannot be parsed, the rows of every version are tried.
    """
    release = Release.parse(version)
    rows = (row for row in KNOWN_CHANGES if row.argument == name and row.versions.contains(release))
    return next((row for row in rows if _holds(row, change)), None)


def _holds(row: KnownChange, change: ArgumentChange) -> bool:
    """Return whether the row explains the change. If the row's check fails on an unexpected value,
    the change is not explained.
    """
    try:
        return row.holds(change)
    except (TypeError, ValueError, ZeroDivisionError):
        return False


def _is_steps_plus_one(change: ArgumentChange) -> bool:
    steps = change.all_shown.get("speculative_num_steps")
    return (
        change.all_shown.get("speculative_eagle_topk") == 1
        and isinstance(steps, int)
        and change.shown == steps + 1
    )


def _becomes_with_algorithm(shown: int, *algorithms: str) -> Callable[[ArgumentChange], bool]:
    return lambda change: (
        change.shown == shown and change.all_shown.get("speculative_algorithm") in algorithms
    )


def _becomes(value: Any, shown: Any) -> Callable[[ArgumentChange], bool]:
    return lambda change: (change.value, change.shown) == (value, shown)


def _uses(change: ArgumentChange, *backends: str) -> bool:
    return any(change.all_shown.get(name) in backends for name in _BACKENDS)


def _page_size_of(*backends: str) -> Callable[[ArgumentChange], bool]:
    return lambda change: change.shown in (32, 64, 128) and _uses(change, *backends)


def _scaled(change: ArgumentChange, factor: float) -> bool:
    return abs(float(change.shown) - float(change.value) * factor) < 1e-9


def _scaled_for_dp_attention(change: ArgumentChange) -> bool:
    return bool(change.all_shown.get("enable_dp_attention")) and _scaled(change, 0.3)


def _divided_by_dp_ranks(change: ArgumentChange) -> bool:
    ranks = change.all_shown.get("attn_dp_size") or change.all_shown.get("dp_size") or 1
    return bool(change.all_shown.get("enable_dp_attention")) and int(change.shown) == int(
        change.value
    ) // int(ranks)


def _is_tp_size(change: ArgumentChange) -> bool:
    switched = change.all_shown.get("enable_ep_moe") or change.all_shown.get("enable_deepep_moe")
    return bool(
        change.shown == change.all_shown.get("tp_size")
        and (switched or change.all_shown.get("moe_a2a_backend") in _EXPERT_BACKENDS)
    )


def _off_with_speculation(change: ArgumentChange) -> bool:
    return not change.shown and bool(change.all_shown.get("speculative_algorithm"))


def _on_without_overlap(change: ArgumentChange) -> bool:
    return bool(
        change.shown
        and (
            change.all_shown.get("speculative_algorithm")
            or (change.all_shown.get("pp_size") or 1) > 1
        )
    )


def _off_with_one_rank(change: ArgumentChange) -> bool:
    return not change.shown and change.all_shown.get("dp_size") == 1


def _is_ngram_breadth(change: ArgumentChange) -> bool:
    shown = change.all_shown
    return shown.get("speculative_algorithm") == "NGRAM" and change.shown == shown.get(
        "speculative_ngram_max_bfs_breadth"
    )


_ARGS = "sglang server_args.py"
_HOOKS = "sglang arg_groups"
KNOWN_CHANGES = (
    KnownChange(
        "speculative_algorithm",
        VersionRange("0.4.4"),
        f"{_ARGS} 0.4.4 - 0.5.12; {_HOOKS}/speculative_hook.py 0.5.20, 0.5.23",
        "NEXTN is SGLang's alias of EAGLE",
        _becomes("NEXTN", "EAGLE"),
    ),
    *(
        KnownChange(
            "speculative_algorithm",
            VersionRange("0.5.12"),
            f"{_ARGS} 0.5.12; {_HOOKS}/speculative_hook.py 0.5.23",
            "a Gemma 4 assistant drafts in its own way",
            _becomes(asked, "FROZEN_KV_MTP"),
        )
        for asked in ("EAGLE", "NEXTN")
    ),
    KnownChange(
        "speculative_num_draft_tokens",
        VersionRange("0.4.6"),
        f"{_ARGS} 0.4.6.post5 - 0.5.12; {_HOOKS}/speculative_hook.py 0.5.20, 0.5.23",
        "with speculative_eagle_topk=1 SGLang always uses num_steps + 1",
        _is_steps_plus_one,
    ),
    KnownChange(
        "speculative_num_steps",
        VersionRange("0.5.12"),
        f"{_HOOKS}/speculative_hook.py 0.5.23",
        "with this algorithm the value is always 1",
        _becomes_with_algorithm(1, "DFLASH", "DSPARK"),
    ),
    KnownChange(
        "speculative_num_steps",
        VersionRange("0.5.3"),
        f"{_HOOKS}/speculative_hook.py 0.5.23",
        "NGRAM has no steps",
        _becomes_with_algorithm(0, "NGRAM"),
    ),
    KnownChange(
        "speculative_eagle_topk",
        VersionRange("0.5.12"),
        f"{_HOOKS}/speculative_hook.py 0.5.23",
        "with this algorithm the value is always 1",
        _becomes_with_algorithm(1, "DFLASH", "DSPARK"),
    ),
    KnownChange(
        "speculative_eagle_topk",
        VersionRange("0.5.3"),
        f"{_ARGS} 0.5.3 - 0.5.18",
        "NGRAM takes its breadth from speculative_ngram_max_bfs_breadth",
        _is_ngram_breadth,
    ),
    KnownChange(
        "enable_mixed_chunk",
        VersionRange("0.4.9"),
        f"{_ARGS} 0.4.9 - 0.5.18; {_HOOKS}/speculative_hook.py 0.5.20, 0.5.23",
        "speculation switches mixed chunks off",
        _off_with_speculation,
    ),
    KnownChange(
        "disable_overlap_schedule",
        VersionRange("0.4.4"),
        f"{_ARGS} 0.4.4 - 0.5.12; {_HOOKS}/overrides.py 0.5.23",
        "SGLang cannot overlap scheduling with this speculation or with pipeline stages",
        _on_without_overlap,
    ),
    KnownChange(
        "page_size",
        VersionRange("0.4.6"),
        f"{_ARGS} 0.4.6.post5 - 0.5.12; {_HOOKS}/overrides.py 0.5.23",
        "this attention backend has its own page sizes",
        _page_size_of(
            "flashmla",
            "cutlass_mla",
            "trtllm_mla",
            "trtllm_mha",
            "cutedsl_mla",
            "fa4",
            "hpc_ops",
            "intel_xpu",
            "ascend",
            "nsa",
        ),
    ),
    KnownChange(
        "kv_cache_dtype",
        VersionRange("0.5.1"),
        f"{_ARGS} 0.5.1 - 0.5.12; {_HOOKS}/overrides.py 0.5.23",
        "bf16 and bfloat16 are names of the same type",
        _becomes("bf16", "bfloat16"),
    ),
    KnownChange(
        "schedule_conservativeness",
        VersionRange("0.4.1"),
        f"{_ARGS} 0.4.1 - 0.5.12; {_HOOKS}/parallel_hook.py 0.5.20, 0.5.23",
        "DP attention multiplies the value by 0.3",
        _scaled_for_dp_attention,
    ),
    KnownChange(
        "chunked_prefill_size",
        VersionRange("0.4.1"),
        f"{_ARGS} 0.4.1 - 0.5.12; {_HOOKS}/parallel_hook.py 0.5.20, 0.5.23",
        "DP attention divides the value by the number of its ranks",
        _divided_by_dp_ranks,
    ),
    KnownChange(
        "enable_dp_attention",
        VersionRange("0.5.3"),
        f"{_ARGS} 0.5.3 - 0.5.12",
        "with one data-parallel rank there is no DP attention",
        _off_with_one_rank,
    ),
    KnownChange(
        "ep_size",
        VersionRange("0.4.1"),
        f"{_ARGS} 0.4.1 - 0.5.12; {_HOOKS}/overrides.py 0.5.23",
        "this expert backend always spreads the experts over all tensor-parallel ranks",
        _is_tp_size,
    ),
    KnownChange(
        "mem_fraction_static",
        VersionRange("0.5.9"),
        f"{_ARGS} 0.5.9 - 0.5.18; {_HOOKS}/attention_hook.py 0.5.20, 0.5.23",
        "with aiter and a long context SGLang keeps 15 % of this memory for its workspace",
        lambda change: _uses(change, "aiter") and _scaled(change, 0.85),
    ),
)
