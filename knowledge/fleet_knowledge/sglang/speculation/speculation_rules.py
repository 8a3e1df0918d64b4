"""Checks speculation: what SGLang rejects, changes by itself, or runs without any gain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches

from fleet_knowledge.release import VersionRange
from fleet_knowledge.server_configuration import (
    ERROR,
    INFO,
    WARNING,
    RuleFinding,
    ServerConfiguration,
    refusal_severity,
    versions_suffix,
)
from fleet_knowledge.sglang.speculation.algorithms import (
    ALGORITHMS,
    ALIASES,
    EAGLE_LIKE,
    find_own_layers,
)
from fleet_knowledge.sglang.speculation.draft_model_rules import apply_draft_model_rules
from fleet_knowledge.sglang.speculation.draft_tree_rules import apply_draft_tree_rules
from fleet_knowledge.sglang.speculation.resolved_arguments import (
    ALGORITHM,
    DRAFT,
    DRAFT_TOKENS,
    STEPS,
    TOPK,
    ResolvedSpeculation,
    canonical_algorithm,
    request_cap,
    resolve_speculation,
    tree_capacity,
)
from fleet_knowledge.sglang_releases import Certainty, certainty_of

_AT = f"args.{ALGORITHM}"
_SPECULATIVE = "speculative_"


def apply_speculation_rules(config: ServerConfiguration) -> Iterator[RuleFinding]:
    """Yield the findings about the speculation of one configuration."""
    speculation = resolve_speculation(config)
    if not speculation.algorithm:
        yield from _without_algorithm(config)
        return
    for rule in _RULES:
        yield from rule(config, speculation)
    yield from apply_draft_tree_rules(config, speculation)


def _without_algorithm(config: ServerConfiguration) -> Iterator[RuleFinding]:
    given = [
        name for name in (STEPS, TOPK, DRAFT_TOKENS, DRAFT) if config.args.get(name) is not None
    ]
    if given:
        message = f"`{given[0]}` has no effect: without `{ALGORITHM}` the server does not speculate"
        yield RuleFinding(
            "spec_without_algorithm",
            WARNING,
            f"args.{given[0]}",
            message,
            f"set {ALGORITHM}, or leave the argument out",
        )
    if config.env.get("SGLANG_SIMULATE_ACC_LEN"):
        message = "SGLANG_SIMULATE_ACC_LEN has no effect: the server does not speculate"
        yield RuleFinding(
            "spec_without_algorithm",
            WARNING,
            "env.SGLANG_SIMULATE_ACC_LEN",
            message,
            f"leave the variable out, or set {ALGORITHM}",
        )


def _unknown_algorithm(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    written, row = config.text(ALGORITHM), ALGORITHMS.get(speculation.algorithm)
    if row is None:
        near = get_close_matches(
            speculation.algorithm[:40], [*ALGORITHMS, *ALIASES], n=1, cutoff=0.6
        )
        message = (
            f"`{written[:40]}` is not an algorithm of any SGLang release known here (up to 0.5.23);"
            " a plug-in may register it"
        )
        known = ", ".join([*ALGORITHMS, *ALIASES])
        hint = f"did you mean {near[0]}?" if near else f"SGLang has: {known}"
        yield RuleFinding("spec_unknown_algorithm", WARNING, _AT, message, hint)
    elif certainty_of(row.versions, config.release) == Certainty.NO:
        message = (
            f"SGLang {config.release} has no {row.name} and rejects it: a later version added it"
        )
        yield RuleFinding(
            "spec_unknown_algorithm",
            ERROR,
            _AT,
            message,
            "use a newer SGLang, or another algorithm",
        )


def _deepseek_v4(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    """Check the algorithm of a DeepSeek V4 model.

    deepseek_v4_hook.py compares the name as it is written, before NEXTN becomes EAGLE (0.5.12 -
    0.5.23).
    """
    own = find_own_layers(config.model_path)
    if own is None or own.architecture != "DeepseekV4ForCausalLM":
        return
    written = config.text(ALGORITHM)
    allowed = (
        ("EAGLE",)
        if config.release and VersionRange("0.5.12", "0.5.15").contains(config.release)
        else ("EAGLE", "DSPARK")
    )
    if written not in allowed:
        names, given = " and ".join(allowed), written[:40]
        message = f"for DeepSeek V4, SGLang accepts only {names} in this spelling, not `{given}`"
        hint = (
            "write EAGLE instead of the alias NEXTN"
            if speculation.algorithm == "EAGLE"
            else f"write {' or '.join(allowed)}"
        )
        yield RuleFinding("spec_model_refuses", ERROR, _AT, message, hint)
    elif written == "EAGLE" and config.number(TOPK) != 1:
        message = f"for DeepSeek V4, SGLang accepts EAGLE only if {TOPK} is set to 1"
        yield RuleFinding("spec_model_refuses", ERROR, _AT, message, f"write {TOPK}: 1")


def _excluded_combinations(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    row = ALGORITHMS.get(speculation.algorithm)
    if row is None:
        return
    pairs = (
        ("data-parallel attention", _dp_attention(config), row.refuses_dp_attention, _DP_HINT),
        ("pp_size above 1", config.size("pp_size") > 1, row.refuses_pp, "leave pp_size out"),
    )
    for what, present, versions, hint in pairs:
        severity = (
            refusal_severity(versions, config.release) if present and versions is not None else None
        )
        if severity and versions is not None:
            suffix = versions_suffix(versions, config.release)
            message = f"SGLang rejects {row.name} with {what}{suffix}"
            yield RuleFinding("spec_excludes", severity, _AT, message, hint)


_DP_HINT = "leave enable_dp_attention out, or use another algorithm"


def _dp_attention(config: ServerConfiguration) -> bool:
    return config.is_on("enable_dp_attention") or config.size("attn_dp_size") > 1


def _incomplete_sizes(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    if speculation.algorithm not in EAGLE_LIKE or config.is_on("speculative_adaptive"):
        return
    steps, topk, tokens = (config.number(name) for name in (STEPS, TOPK, DRAFT_TOKENS))
    if steps is None and (topk is not None or tokens is not None):
        given = TOPK if topk is not None else DRAFT_TOKENS
        message = (
            f"`{given}` is set without `{STEPS}`: SGLang stops with an AssertionError unless all"
            f" three sizes are set, or none"
        )
        yield RuleFinding(
            "spec_incomplete",
            ERROR,
            f"args.{given}",
            message,
            f"write {STEPS} too, or leave {TOPK} and {DRAFT_TOKENS} out",
        )
    elif steps is not None and topk is None:
        message = (
            f"`{STEPS}` is set without `{TOPK}`: SGLang compares the missing value with a number"
            " and stops with a TypeError"
        )
        yield RuleFinding(
            "spec_incomplete",
            ERROR,
            f"args.{STEPS}",
            message,
            f"write {TOPK}: 1, or leave all three sizes out",
        )
    elif steps is not None and topk is not None and topk > 1 and tokens is None:
        most = tree_capacity(steps, topk) + 1
        message = f"`{TOPK}` {topk} needs `{DRAFT_TOKENS}`: SGLang fills it in only if {TOPK} is 1"
        yield RuleFinding(
            "spec_incomplete",
            ERROR,
            f"args.{TOPK}",
            message,
            f"write {DRAFT_TOKENS} with a value of at most {most}",
        )


def _automatic_sizes(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    is_unset = all(config.number(name) is None for name in (STEPS, TOPK, DRAFT_TOKENS))
    is_adaptive = config.is_on("speculative_adaptive")
    if speculation.algorithm in EAGLE_LIKE and is_unset and not is_adaptive:
        sizes = f"{speculation.steps}/{speculation.topk}/{speculation.draft_tokens}"
        message = (
            f"SGLang chooses steps, topk and draft tokens by itself: {sizes} for a model of this"
            " name; another version or model may get other sizes"
        )
        hint = f"set {STEPS}, {TOPK} and {DRAFT_TOKENS}, so that the job states what it measures"
        yield RuleFinding("spec_automatic", INFO, _AT, message, hint)


def _request_cap(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    cap = request_cap(config)
    if cap is not None and config.concurrency > cap:
        message = (
            f"{config.concurrency} requests are kept in flight, but with speculation and without"
            f" `max_running_requests` SGLang runs at most {cap} at once: the others wait, and a"
            " variant without speculation has no such cap"
        )
        hint = (
            f"write max_running_requests: {config.concurrency} or more in engine.args, so that it"
            " applies to all variants"
        )
        yield RuleFinding("spec_requests_capped", WARNING, "concurrency", message, hint)


def _overlap_scheduler(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    if speculation.algorithm not in EAGLE_LIKE or "SGLANG_ENABLE_SPEC_V2" not in config.env:
        return
    at = "env.SGLANG_ENABLE_SPEC_V2"
    refused = VersionRange("0.5.7", "0.5.10")  # 0.5.9 server_args.py
    removed = VersionRange("0.5.14")  # 0.5.14 speculative_hook.py
    severity = refusal_severity(refused, config.release)
    if (
        config.is_variable_on("SGLANG_ENABLE_SPEC_V2")
        and (config.number(TOPK) or 1) > 1
        and severity
    ):
        topk, suffix = config.number(TOPK), versions_suffix(refused, config.release)
        message = f"spec v2 accepts only {TOPK} 1: the launch fails with {topk}{suffix}"
        yield RuleFinding(
            "spec_v2_topk", severity, at, message, f"unset SGLANG_ENABLE_SPEC_V2, or set {TOPK} 1"
        )
    elif config.release and removed.contains(config.release):
        message = (
            f"SGLANG_ENABLE_SPEC_V2 has no effect in SGLang {config.release}: from 0.5.14 on spec"
            " v2 always runs"
        )
        yield RuleFinding(
            "variable_without_effect",
            WARNING,
            at,
            message,
            "leave the variable out; disable_overlap_schedule: true turns the overlap off",
        )


def _simulated_acceptance(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    if config.env.get("SGLANG_SIMULATE_ACC_LEN"):
        message = (
            "the accept length is simulated: rates show the speed of the system, not of the draft"
        )
        yield RuleFinding(
            "spec_simulated",
            INFO,
            "env.SGLANG_SIMULATE_ACC_LEN",
            message,
            "use the variable in all variants that are compared, or in none",
        )


_RULES: tuple[Callable[[ServerConfiguration, ResolvedSpeculation], Iterator[RuleFinding]], ...] = (
    _unknown_algorithm,
    _deepseek_v4,
    apply_draft_model_rules,
    _excluded_combinations,
    _incomplete_sizes,
    _automatic_sizes,
    _request_cap,
    _overlap_scheduler,
    _simulated_acceptance,
)

__all__ = ["apply_speculation_rules", "canonical_algorithm"]
