"""Checks the shape of the drafts: chain and tree sizes, pages and attention backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fleet_knowledge.release import VersionRange
from fleet_knowledge.server_configuration import (
    ERROR,
    WARNING,
    RuleFinding,
    ServerConfiguration,
    refusal_severity,
    versions_suffix,
)
from fleet_knowledge.sglang.speculation.algorithms import EAGLE_LIKE
from fleet_knowledge.sglang.speculation.resolved_arguments import (
    ALGORITHM,
    DRAFT_TOKENS,
    STEPS,
    TOPK,
    ResolvedSpeculation,
    tree_capacity,
)

# Backends that can draft a tree over pages of several tokens; SGLang rejects any other. Source:
# server_args.py, speculative_hook.py from 0.5.13.
_PAGED_TREES: tuple[tuple[VersionRange, tuple[str, ...]], ...] = (
    (VersionRange("0.5.2", "0.5.5"), ("flashinfer",)),
    (VersionRange("0.5.6", "0.5.12"), ("flashinfer", "fa3")),
    (VersionRange("0.5.13"), ("flashinfer", "fa3", "triton")),
)
_BACKENDS = ("attention_backend", "decode_attention_backend", "prefill_attention_backend")


def apply_draft_tree_rules(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    """Yield the findings about the draft sizes of one configuration."""
    for rule in _RULES:
        yield from rule(config, speculation)


def _sizes(config: ServerConfiguration, speculation: ResolvedSpeculation) -> Iterator[RuleFinding]:
    for name in (STEPS, TOPK, DRAFT_TOKENS):
        value = config.number(name)
        if value is not None and value < 1 and speculation.algorithm in EAGLE_LIKE:
            yield RuleFinding(
                "spec_bad_size",
                ERROR,
                f"args.{name}",
                f"`{name}` is {value}, but it must be above 0",
                _NONE_HINT,
            )


_NONE_HINT = (
    f"for a variant without speculation leave out {ALGORITHM} and its sizes (null removes them)"
)


def _adjusted(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    for change in speculation.adjustments:
        if change.asked is not None and change.used > 0:
            message = (
                f"SGLang runs `{change.argument}` {change.used}, not {change.asked}: {change.why}"
            )
            hint = (
                f"write {change.used}"
                if change.argument != DRAFT_TOKENS
                else f"write {change.used} ({STEPS} + 1), or set {TOPK} above 1"
            )
            yield RuleFinding("spec_adjusted", WARNING, f"args.{change.argument}", message, hint)


def _overflow(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    """Check that the tree can supply the draft tokens.

    organize_draft_results selects the best draft_tokens - 1 tokens of the tree with torch.topk,
    which fails if the tree has fewer.
    """
    steps, topk, tokens = speculation.steps, speculation.topk, speculation.draft_tokens
    if speculation.algorithm not in EAGLE_LIKE or steps is None or topk is None or tokens is None:
        return
    if min(steps, topk) < 1:
        return
    holds = tree_capacity(steps, topk)
    least, most = steps + 1, holds + 1
    if tokens - 1 > holds:
        sum_text = f"{topk} + {steps - 1}*{topk}*{topk} = {holds} nodes + root"
        message = (
            f"`{DRAFT_TOKENS}` {tokens} is more than the tree can hold ({sum_text}): SGLang fails"
            " at the first draft"
        )
        yield RuleFinding(
            "spec_tree_overflow",
            WARNING,
            f"args.{DRAFT_TOKENS}",
            message,
            f"write at most {most} draft tokens, or set more steps or a larger topk",
        )
    elif topk > 1 and tokens < least:
        message = (
            f"`{DRAFT_TOKENS}` {tokens} leaves out the last of {steps} steps: SGLang drafts these"
            " tokens and discards them"
        )
        yield RuleFinding(
            "spec_steps_unused",
            WARNING,
            f"args.{DRAFT_TOKENS}",
            message,
            f"write at least {least} draft tokens, or set fewer steps",
        )


def _pages(config: ServerConfiguration, speculation: ResolvedSpeculation) -> Iterator[RuleFinding]:
    page, backend = config.size("page_size"), config.text("attention_backend")
    branches = (
        speculation.topk
        if speculation.algorithm in EAGLE_LIKE
        else (config.number("speculative_ngram_max_bfs_breadth", 10) or 10)
    )
    if (
        page == 1
        or branches is None
        or branches <= 1
        or speculation.algorithm not in (*EAGLE_LIKE, "NGRAM")
    ):
        return
    able = _capable_backends(config, speculation.algorithm)
    if backend in able[0]:
        return
    sure = bool(backend) and backend not in able[1]
    seen = f"attention_backend {backend}" if backend else "the backend that SGLang chooses"
    what = (
        f"{TOPK} {branches}"
        if speculation.algorithm in EAGLE_LIKE
        else f"NGRAM's tree of {branches} branches"
    )
    only = f"{what} with page_size {page} runs only on {', '.join(able[1])}"
    message = f"{only}; SGLang may reject {seen} at launch"
    if sure:
        message = f"{only}: SGLang rejects {seen}"
    elif backend:
        first = next(versions.first for versions, backends in _PAGED_TREES if backend in backends)
        message = (
            f"{what} with page_size {page} runs on {seen} only from SGLang {first} on: an older"
            " version rejects it at launch"
        )
    capable = able[0][0]
    hint = f"write page_size: 1, or attention_backend: {capable}" + (
        f", or {TOPK}: 1" if speculation.algorithm in EAGLE_LIKE else ""
    )
    yield RuleFinding(
        "spec_paged_tree", ERROR if sure else WARNING, "args.page_size", message, hint
    )


def _capable_backends(
    config: ServerConfiguration, algorithm: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (attention backends that surely can draft a tree over pages of several tokens,
    attention backends that can in some version).

    Only versions that the job may run count.
    """
    if algorithm == "NGRAM":
        return ("flashinfer",), ("flashinfer",)
    rows = [
        backends for versions, backends in _PAGED_TREES if versions.contains(config.release)
    ] or [_PAGED_TREES[-1][1]]
    return rows[0], rows[-1]


def _trtllm(config: ServerConfiguration, speculation: ResolvedSpeculation) -> Iterator[RuleFinding]:
    for name in _BACKENDS:
        versions = VersionRange("0.5.0")
        severity = refusal_severity(versions, config.release)
        if (
            config.text(name) == "trtllm_mha"
            and speculation.algorithm in EAGLE_LIKE
            and (speculation.topk or 1) > 1
            and severity
        ):
            message = (
                f"`{name}: trtllm_mha` speculates only with {TOPK} 1: SGLang rejects"
                f" {speculation.topk}"
            )
            yield RuleFinding(
                "spec_trtllm_topk",
                ERROR,
                f"args.{name}",
                message,
                f"write {TOPK}: 1, or another attention backend",
            )


def _on_cpu(config: ServerConfiguration, speculation: ResolvedSpeculation) -> Iterator[RuleFinding]:
    """Check that the algorithm runs on a CPU.

    Up to 0.5.15, NGRAM was for CUDA only. DFLASH, DSPARK and UNO still need an accelerator
    (speculative_hook.py).
    """
    if config.text("device") != "cpu" or speculation.algorithm not in (
        "NGRAM",
        "DFLASH",
        "DSPARK",
        "UNO",
    ):
        return
    versions = (
        VersionRange("0.5.3", "0.5.15") if speculation.algorithm == "NGRAM" else VersionRange()
    )
    severity = refusal_severity(versions, config.release)
    if severity:
        suffix = versions_suffix(versions, config.release)
        message = f"SGLang rejects {speculation.algorithm} on a CPU{suffix}"
        yield RuleFinding(
            "spec_excludes",
            severity,
            f"args.{ALGORITHM}",
            message,
            "use EAGLE3 or STANDALONE on a CPU, or run the job on GPUs",
        )


_RULES: tuple[Callable[[ServerConfiguration, ResolvedSpeculation], Iterator[RuleFinding]], ...] = (
    _sizes,
    _adjusted,
    _overflow,
    _pages,
    _trtllm,
    _on_cpu,
)
