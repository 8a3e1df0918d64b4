"""Resolves speculation arguments as SGLang does, with its own defaults and corrections by
version.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_knowledge.release import Release, VersionRange
from fleet_knowledge.server_configuration import ServerConfiguration
from fleet_knowledge.sglang.speculation.algorithms import (
    ALGORITHMS,
    ALIASES,
    EAGLE_LIKE,
    model_family,
)
from fleet_knowledge.sglang_releases import Certainty, certainty_of

STEPS = "speculative_num_steps"
TOPK = "speculative_eagle_topk"
DRAFT_TOKENS = "speculative_num_draft_tokens"
ALGORITHM, DRAFT = "speculative_algorithm", "speculative_draft_model_path"
ADJUSTED_LINE = (
    "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1"
    " when speculative_eagle_topk == 1"
)
# server_args.py: "Max running requests is reset to 48 for speculative decoding", 0.4.6 - 0.5.23 (32
# in 0.4.4)
REQUEST_CAP = 48
_CAPPED = VersionRange("0.4.4")
_LARGE, _SMALL = (5, 4, 8), (3, 1, 4)
# There, auto_choose_speculative_params chooses 5/4/8 for every model.
_ALL_LARGE = VersionRange("0.4.6", "0.4.6.post5")
_LARGE_FAMILIES = frozenset({"LlamaForCausalLM", "Grok1ForCausalLM"})


@dataclass(frozen=True, slots=True)
class Adjustment:
    """An argument that the server changes by itself. `asked` is None if the job does not set it."""

    argument: str
    asked: int | None
    used: int
    why: str


@dataclass(frozen=True, slots=True)
class ResolvedSpeculation:
    """Holds speculation as the server runs it. `algorithm` is empty without speculation.

    A size is None if it is unknown, or if the server rejects the arguments.
    """

    algorithm: str = ""
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    adjustments: tuple[Adjustment, ...] = ()

    @property
    def max_accept_length(self) -> int | None:
        """Return the maximum number of tokens that one verify step can yield, including the bonus
        token. Return None if it is unknown.
        """
        if self.algorithm not in EAGLE_LIKE:
            return self.draft_tokens
        return (
            None
            if self.steps is None or self.draft_tokens is None
            else min(self.steps + 1, self.draft_tokens)
        )


def canonical_algorithm(algorithm: str) -> str:
    """Return the algorithm's own name in upper case. NEXTN is another name of EAGLE."""
    name = algorithm.strip().upper()
    return ALIASES.get(name, name)


def tree_capacity(steps: int, topk: int) -> int:
    """Return how many draft tokens the tree can hold in addition to its root.

    That is topk + (steps - 1)·topk² (eagle_utils.py, organize_draft_results).
    """
    return topk + (steps - 1) * topk * topk


def resolve_speculation(config: ServerConfiguration) -> ResolvedSpeculation:
    """Return the speculation that the server runs."""
    name = canonical_algorithm(config.text(ALGORITHM))
    if not name:
        return ResolvedSpeculation()
    steps, topk, tokens = (config.number(argument) for argument in (STEPS, TOPK, DRAFT_TOKENS))
    if name in EAGLE_LIKE:
        return _eagle(name, config, (steps, topk, tokens))
    row = ALGORITHMS.get(name)
    if row and row.forces_one:
        changed = tuple(
            Adjustment(argument, value, 1, f"{name} has one step and one branch")
            for argument, value in ((STEPS, steps), (TOPK, topk))
            if value not in (None, 1)
        )
        return ResolvedSpeculation(name, 1, 1, tokens, changed)
    return ResolvedSpeculation(name, steps, topk, tokens)


def _eagle(
    name: str, config: ServerConfiguration, given: tuple[int | None, int | None, int | None]
) -> ResolvedSpeculation:
    if given == (None, None, None):
        return ResolvedSpeculation(name, *automatic_sizes(name, config))
    steps, topk, tokens = given
    topk, changed = _topk_with_pages(config, topk)
    if steps is None or topk is None:
        return ResolvedSpeculation(name, steps, topk, tokens, changed)
    if topk == 1 and tokens != steps + 1:
        why = "with one branch the draft is a chain: its root and one token per step"
        changed = (*changed, Adjustment(DRAFT_TOKENS, tokens, steps + 1, why))
        tokens = steps + 1
    return ResolvedSpeculation(name, steps, topk, tokens, changed)


def _topk_with_pages(
    config: ServerConfiguration, topk: int | None
) -> tuple[int | None, tuple[Adjustment, ...]]:
    """Return topk and its adjustment.

    In 0.4.4 - 0.4.8, SGLang sets topk to 1 if a page has more than one token. Later versions reject
    this combination (0.4.6.post5 server_args.py).
    """
    if (
        config.release
        and topk
        and topk > 1
        and config.size("page_size") > 1
        and VersionRange("0.4.4", "0.4.8").contains(config.release)
    ):
        return 1, (Adjustment(TOPK, topk, 1, "page_size is above 1"),)
    return topk, ()


def automatic_sizes(name: str, config: ServerConfiguration) -> tuple[int, int, int]:
    """Return the steps, topk and draft tokens that SGLang chooses if the job sets none of the
    three.

    Source: auto_choose_speculative_params.
    """
    if name == "STANDALONE":
        return _SMALL
    every = config.release is not None and _ALL_LARGE.contains(config.release)
    return _LARGE if every or model_family(config.model_path) in _LARGE_FAMILIES else _SMALL


def request_cap(config: ServerConfiguration) -> int | None:
    """Return the maximum number of requests that speculation lets run at once.

    Return None if the job sets `max_running_requests`, or if speculation sets no maximum.
    """
    algorithm = ALGORITHMS.get(canonical_algorithm(config.text(ALGORITHM)))
    if (
        algorithm is None
        or algorithm.name == "UNO"
        or config.number("max_running_requests") is not None
    ):
        return None
    if certainty_of(_CAPPED, config.release) == Certainty.NO:
        return None
    older = config.release is not None and config.release < Release((0, 4, 6))
    return 32 if older else REQUEST_CAP
