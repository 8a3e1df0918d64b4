"""Owns the rules on speculation: what SGLang refuses, changes by itself, or runs without any gain.
Reads no file.
"""

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
    names_eagle3,
    names_older_eagle,
)
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
    """Everything to tell about the speculation of one configuration."""
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
        message = f"`{given[0]}` has no effect: no `{ALGORITHM}` is given, so nothing is speculated"
        yield RuleFinding(
            "spec_without_algorithm",
            WARNING,
            f"args.{given[0]}",
            message,
            "name the algorithm, or leave the argument out",
        )
    if config.env.get("SGLANG_SIMULATE_ACC_LEN"):
        message = "SGLANG_SIMULATE_ACC_LEN has no effect: nothing is speculated"
        yield RuleFinding(
            "spec_without_algorithm",
            WARNING,
            "env.SGLANG_SIMULATE_ACC_LEN",
            message,
            "leave it out, or name an algorithm",
        )


def _unknown_algorithm(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    written, row = config.text(ALGORITHM), ALGORITHMS.get(speculation.algorithm)
    if row is None:
        near = get_close_matches(
            speculation.algorithm[:40], [*ALGORITHMS, *ALIASES], n=1, cutoff=0.6
        )
        message = f"`{written[:40]}` is not an algorithm of the SGLang releases read (up to 0.5.23); a plug-in may register it"
        hint = (
            f"did you mean {near[0]}?"
            if near
            else f"they have: {', '.join([*ALGORITHMS, *ALIASES])}"
        )
        yield RuleFinding("spec_unknown_algorithm", WARNING, _AT, message, hint)
    elif certainty_of(row.versions, config.release) == Certainty.NO:
        message = f"SGLang {config.release} has no {row.name}: it came with a later version, so this one refuses the choice"
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
    """deepseek_v4_hook.py compares the name as it was written, before NEXTN becomes EAGLE (0.5.12 -
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
        message = f"SGLang takes only {' and '.join(allowed)} for DeepSeek V4, written so, not `{written[:40]}`"
        hint = (
            "write EAGLE instead of the alias NEXTN"
            if speculation.algorithm == "EAGLE"
            else f"write {' or '.join(allowed)}"
        )
        yield RuleFinding("spec_model_refuses", ERROR, _AT, message, hint)
    elif written == "EAGLE" and config.number(TOPK) != 1:
        message = "SGLang takes EAGLE for DeepSeek V4 only with speculative_eagle_topk 1, and it must be given"
        yield RuleFinding("spec_model_refuses", ERROR, _AT, message, f"write {TOPK}: 1")


def _draft(config: ServerConfiguration, speculation: ResolvedSpeculation) -> Iterator[RuleFinding]:
    row, draft = ALGORITHMS.get(speculation.algorithm), config.text(DRAFT)
    if row is None:
        return
    if draft:
        yield from _unfit_draft(config, speculation, draft)
    elif row.draft == "needed":
        message = f"{row.name} needs `{DRAFT}`, and none is given" + _WITHOUT_DRAFT.get(
            row.name, ""
        )
        own = find_own_layers(config.model_path) if row.name == "EAGLE3" else None
        hint = "give a draft that was trained for this model"
        hint += (
            "; this model has draft layers of its own: EAGLE runs them without a path"
            if own
            else ""
        )
        yield RuleFinding("spec_draft_missing", ERROR, _AT, message, hint)
    elif row.draft == "own":
        yield from _draft_layers(config)
    elif row.draft == "bundled":
        message = f"{row.name} needs `{DRAFT}` unless the checkpoint holds a draft"
        yield RuleFinding(
            "spec_draft_missing",
            INFO,
            _AT,
            message,
            "give the path if the launch fails for want of it",
        )


_WITHOUT_DRAFT = {
    "EAGLE3": ": SGLang loads the model a second time as its own draft and fails after that, or runs out of memory",
    "STANDALONE": ": SGLang loads the model a second time as its own draft, which is slower than none",
}


def _draft_layers(config: ServerConfiguration) -> Iterator[RuleFinding]:
    own = find_own_layers(config.model_path)
    if own is None:
        message = f"EAGLE without `{DRAFT}` works only for models with draft layers of their own; `{config.model_path}` is not known as one"
        hint = "give a draft; without one the model is loaded twice, and the launch fails unless it has such layers"
        yield RuleFinding("spec_draft_missing", WARNING, _AT, message, hint)
    elif certainty_of(own.versions, config.release) == Certainty.NO:
        message = f"SGLang {config.release} does not use the model's own draft layers without `{DRAFT}`: {own.versions.first} and newer do"
        yield RuleFinding(
            "spec_draft_missing", WARNING, _AT, message, f"write {DRAFT}: {config.model_path}"
        )


def _unfit_draft(
    config: ServerConfiguration, speculation: ResolvedSpeculation, draft: str
) -> Iterator[RuleFinding]:
    if speculation.algorithm == "EAGLE" and names_eagle3(draft):
        message = (
            f"{config.text(ALGORITHM)} is given for an EAGLE-3 draft (`{draft[-80:]}`): the server starts healthy and"
            " accepts exactly 1.00 tokens, so nothing is gained and the measurement is invalid"
        )
        yield RuleFinding("spec_eagle3_as_eagle", ERROR, _AT, message, f"write {ALGORITHM}: EAGLE3")
    elif speculation.algorithm == "EAGLE3" and names_older_eagle(draft):
        message = f"EAGLE3 is given for a draft whose name says EAGLE, not EAGLE-3 (`{draft[-80:]}`): such a draft cannot be loaded as one"
        yield RuleFinding(
            "spec_draft_not_eagle3",
            WARNING,
            f"args.{DRAFT}",
            message,
            "give an EAGLE-3 draft, or write EAGLE",
        )
    elif speculation.algorithm == "STANDALONE" and draft == config.model_path:
        message = "the model is given as its own draft: each draft step costs as much as a step of the model, so this is slower than none"
        yield RuleFinding(
            "spec_draft_is_model",
            INFO,
            f"args.{DRAFT}",
            message,
            "give a much smaller model of the same vocabulary",
        )
    elif speculation.algorithm in ("NGRAM", "UNO"):
        refuses = speculation.algorithm == "UNO"
        message = f"{speculation.algorithm} has no draft model: `{DRAFT}` is {'refused' if refuses else 'not used'}"
        yield RuleFinding(
            "spec_draft_unused",
            ERROR if refuses else WARNING,
            f"args.{DRAFT}",
            message,
            "leave it out",
        )


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
            message = (
                f"SGLang refuses {row.name} with {what}{versions_suffix(versions, config.release)}"
            )
            yield RuleFinding("spec_excludes", severity, _AT, message, hint)


_DP_HINT = "leave enable_dp_attention out, or speculate otherwise"


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
        message = f"`{given}` is given without `{STEPS}`: SGLang stops with an AssertionError unless all three are given, or none"
        yield RuleFinding(
            "spec_incomplete",
            ERROR,
            f"args.{given}",
            message,
            f"write {STEPS} too, or leave {TOPK} and {DRAFT_TOKENS} out",
        )
    elif steps is not None and topk is None:
        message = f"`{STEPS}` is given without `{TOPK}`: SGLang compares it with a number and stops with a TypeError"
        yield RuleFinding(
            "spec_incomplete",
            ERROR,
            f"args.{STEPS}",
            message,
            f"write {TOPK}: 1, or leave all three out",
        )
    elif steps is not None and topk is not None and topk > 1 and tokens is None:
        message = (
            f"`{TOPK}` {topk} needs `{DRAFT_TOKENS}`: only with one branch does SGLang fill it in"
        )
        yield RuleFinding(
            "spec_incomplete",
            ERROR,
            f"args.{TOPK}",
            message,
            f"write {DRAFT_TOKENS}, at most {tree_capacity(steps, topk) + 1}",
        )


def _automatic_sizes(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    nothing_given = all(config.number(name) is None for name in (STEPS, TOPK, DRAFT_TOKENS))
    if (
        speculation.algorithm in EAGLE_LIKE
        and nothing_given
        and not config.is_on("speculative_adaptive")
    ):
        message = (
            f"SGLang chooses steps, topk and draft tokens by itself, {speculation.steps}/{speculation.topk}/{speculation.draft_tokens}"
            " for this model by its name; another version or model gets others"
        )
        hint = (
            f"write {STEPS}, {TOPK} and {DRAFT_TOKENS}, so that the variant says what it measures"
        )
        yield RuleFinding("spec_automatic", INFO, _AT, message, hint)


def _request_cap(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    cap = request_cap(config)
    if cap is not None and config.concurrency > cap:
        message = (
            f"{config.concurrency} requests are kept in flight, but with speculation and without `max_running_requests` SGLang"
            f" runs at most {cap} at once: the others wait, and a variant without speculation has no such cap"
        )
        hint = f"write max_running_requests: {config.concurrency} or more in engine.args, for all variants alike"
        yield RuleFinding("spec_requests_capped", WARNING, "concurrency", message, hint)


def _overlap_scheduler(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    if speculation.algorithm not in EAGLE_LIKE or "SGLANG_ENABLE_SPEC_V2" not in config.env:
        return
    at = "env.SGLANG_ENABLE_SPEC_V2"
    refused, removed = (
        VersionRange("0.5.7", "0.5.10"),
        VersionRange("0.5.14"),
    )  # 0.5.9 server_args.py; 0.5.14 speculative_hook.py
    severity = refusal_severity(refused, config.release)
    if (
        config.is_variable_on("SGLANG_ENABLE_SPEC_V2")
        and (config.number(TOPK) or 1) > 1
        and severity
    ):
        message = f"spec v2 takes only {TOPK} 1, and the launch fails with {config.number(TOPK)}{versions_suffix(refused, config.release)}"
        yield RuleFinding(
            "spec_v2_topk", severity, at, message, f"unset SGLANG_ENABLE_SPEC_V2, or set {TOPK} 1"
        )
    elif config.release and removed.contains(config.release):
        message = f"SGLANG_ENABLE_SPEC_V2 has no effect in SGLang {config.release}: spec v2 always runs since 0.5.14"
        yield RuleFinding(
            "variable_without_effect",
            WARNING,
            at,
            message,
            "leave it out; disable_overlap_schedule chooses the other path",
        )


def _simulated_acceptance(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    if config.env.get("SGLANG_SIMULATE_ACC_LEN"):
        message = "the accept length is simulated: rates tell about the system, not about the draft"
        yield RuleFinding(
            "spec_simulated",
            INFO,
            "env.SGLANG_SIMULATE_ACC_LEN",
            message,
            "use it in all variants that are compared, or in none",
        )


_RULES: tuple[Callable[[ServerConfiguration, ResolvedSpeculation], Iterator[RuleFinding]], ...] = (
    _unknown_algorithm, _deepseek_v4, _draft, _excluded_combinations, _incomplete_sizes, _automatic_sizes, _request_cap, _overlap_scheduler, _simulated_acceptance,
)  # fmt: skip

__all__ = ["apply_speculation_rules", "canonical_algorithm"]
