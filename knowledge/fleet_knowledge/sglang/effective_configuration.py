"""Finds out which configuration a server really runs, after SGLang corrected or overwrote
settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_knowledge.server_configuration import ServerConfiguration
from fleet_knowledge.sglang.environment_rules import find_overwrites
from fleet_knowledge.sglang.parallelism import exchanges_over_nccl
from fleet_knowledge.sglang.server_arguments import known_arguments
from fleet_knowledge.sglang.speculation.resolved_arguments import (
    ALGORITHM,
    DRAFT,
    DRAFT_TOKENS,
    STEPS,
    TOPK,
    resolve_speculation,
)

_SPECULATION = (STEPS, TOPK, DRAFT_TOKENS, DRAFT)


@dataclass(frozen=True, slots=True)
class IneffectiveSetting:
    """A setting that has no effect.

    `subject` is `args.NAME` or `env.NAME`. `why` completes the sentence `it changes nothing: …`.
    """

    subject: str
    why: str


@dataclass(frozen=True, slots=True)
class EffectiveConfiguration:
    """Holds the settings of a server that take effect, and the settings that do not.

    Two servers with the same `args` and `env` here run the same configuration.
    """

    args: Mapping[str, Any]
    env: Mapping[str, str]
    ineffective: tuple[IneffectiveSetting, ...]

    @property
    def identity(self) -> str:
        """Return a text that is equal for servers that run the same configuration."""
        return json.dumps(
            [{name: str(value) for name, value in self.args.items()}, dict(self.env)],
            sort_keys=True,
        )


def resolve_configuration(config: ServerConfiguration) -> EffectiveConfiguration:
    """Return the configuration after SGLang's own changes.

    Only settings that certainly have no effect are removed.
    """
    ineffective = (*_ineffective_arguments(config), *_ineffective_variables(config))
    removed = {each.subject for each in ineffective}
    args = {name: value for name, value in config.args.items() if f"args.{name}" not in removed}
    env = {name: value for name, value in config.env.items() if f"env.{name}" not in removed}
    return EffectiveConfiguration(_with_resolved_arguments(config, args), env, ineffective)


def _with_resolved_arguments(config: ServerConfiguration, args: dict[str, Any]) -> dict[str, Any]:
    speculation = resolve_speculation(config)
    if not speculation.algorithm:
        return args
    chain = {
        change.argument: change.used
        for change in speculation.adjustments
        if args.get(change.argument) is not None
    }
    chain |= (
        {DRAFT_TOKENS: speculation.draft_tokens}
        if speculation.topk == 1 and speculation.draft_tokens is not None
        else {}
    )
    return args | {ALGORITHM: speculation.algorithm} | chain


def _ineffective_arguments(config: ServerConfiguration) -> Iterator[IneffectiveSetting]:
    speculates = bool(config.text(ALGORITHM))
    for name, value in config.args.items():
        if name.startswith("speculative_") and name != ALGORITHM and not speculates:
            yield IneffectiveSetting(
                f"args.{name}", f"without `{ALGORITHM}` the server does not speculate"
            )
        elif _is_default(name, value):
            yield IneffectiveSetting(f"args.{name}", f"{value} is SGLang's default")
    if speculates and resolve_speculation(config).algorithm == "NGRAM" and config.text(DRAFT):
        yield IneffectiveSetting(f"args.{DRAFT}", "NGRAM has no draft model")


def _is_default(name: str, value: Any) -> bool:
    entry = known_arguments().get(name)
    if (
        entry is None
        or not entry.default
        or not isinstance(value, str | int | float)
        or isinstance(value, bool)
    ):
        return False
    if str(value) == entry.default:
        return True
    try:
        return float(value) == float(entry.default)
    except ValueError:
        return False


def _ineffective_variables(config: ServerConfiguration) -> Iterator[IneffectiveSetting]:
    lost = {found.change.variable: found for found in find_overwrites(config) if found.sure}
    nccl = exchanges_over_nccl(config.args)
    for name in config.env:
        if name in lost:
            change = lost[name].change
            because = f" because of {change.why}" if change.why else ""
            yield IneffectiveSetting(f"env.{name}", f"SGLang sets this variable itself{because}")
        elif name.startswith(("NCCL_", "RCCL_")) and not nccl:
            yield IneffectiveSetting(
                f"env.{name}",
                "no ranks of the server communicate through NCCL"
                " (one GPU, replicas only, or a CPU)",
            )
        elif name == "SGLANG_SIMULATE_ACC_LEN" and not config.text(ALGORITHM):
            yield IneffectiveSetting(f"env.{name}", "the server does not speculate")
