"""Checks the draft model: whether the algorithm needs a draft model, and whether the given model
fits.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet_knowledge.server_configuration import (
    ERROR,
    INFO,
    WARNING,
    RuleFinding,
    ServerConfiguration,
)
from fleet_knowledge.sglang.speculation.algorithms import (
    ALGORITHMS,
    find_own_layers,
    names_eagle3,
    names_older_eagle,
)
from fleet_knowledge.sglang.speculation.resolved_arguments import (
    ALGORITHM,
    DRAFT,
    ResolvedSpeculation,
)
from fleet_knowledge.sglang_releases import Certainty, certainty_of

_AT = f"args.{ALGORITHM}"


def apply_draft_model_rules(
    config: ServerConfiguration, speculation: ResolvedSpeculation
) -> Iterator[RuleFinding]:
    """Yield the findings about the draft model of one configuration."""
    row, draft = ALGORITHMS.get(speculation.algorithm), config.text(DRAFT)
    if row is None:
        return
    if draft:
        yield from _unfit_draft(config, speculation, draft)
    elif row.draft == "needed":
        message = f"{row.name} needs `{DRAFT}`, but it is not set" + _WITHOUT_DRAFT.get(
            row.name, ""
        )
        own = find_own_layers(config.model_path) if row.name == "EAGLE3" else None
        hint = f"set {DRAFT} to a draft that was trained for this model"
        hint += (
            "; this model has draft layers of its own: EAGLE runs them without a path"
            if own
            else ""
        )
        yield RuleFinding("spec_draft_missing", ERROR, _AT, message, hint)
    elif row.draft == "own":
        yield from _draft_layers(config)
    elif row.draft == "bundled":
        message = f"{row.name} needs `{DRAFT}` unless the checkpoint contains a draft"
        yield RuleFinding(
            "spec_draft_missing",
            INFO,
            _AT,
            message,
            f"set {DRAFT} if the launch fails without it",
        )


_WITHOUT_DRAFT = {
    "EAGLE3": (
        ": SGLang loads the model a second time as its own draft and then fails, or runs out of"
        " memory"
    ),
    "STANDALONE": (
        ": SGLang loads the model a second time as its own draft, which is slower than no"
        " speculation"
    ),
}


def _draft_layers(config: ServerConfiguration) -> Iterator[RuleFinding]:
    model = config.model_path
    own = find_own_layers(model)
    if own is None:
        message = (
            f"EAGLE without `{DRAFT}` works only for models with draft layers of their own, but"
            f" `{model}` is not known to have such layers"
        )
        hint = (
            f"set {DRAFT}; without a draft path SGLang loads the model twice, and the launch fails"
            " unless the model has draft layers"
        )
        yield RuleFinding("spec_draft_missing", WARNING, _AT, message, hint)
    elif certainty_of(own.versions, config.release) == Certainty.NO:
        first = own.versions.first
        message = (
            f"SGLang {config.release} does not use the model's own draft layers without `{DRAFT}`:"
            f" SGLang {first} and newer do"
        )
        yield RuleFinding("spec_draft_missing", WARNING, _AT, message, f"write {DRAFT}: {model}")


def _unfit_draft(
    config: ServerConfiguration, speculation: ResolvedSpeculation, draft: str
) -> Iterator[RuleFinding]:
    if speculation.algorithm == "EAGLE" and names_eagle3(draft):
        message = (
            f"{config.text(ALGORITHM)} is set for an EAGLE-3 draft (`{draft[-80:]}`): the server"
            " starts healthy but accepts exactly 1.00 tokens, so speculation gains nothing and the"
            " measurement is invalid"
        )
        yield RuleFinding("spec_eagle3_as_eagle", ERROR, _AT, message, f"write {ALGORITHM}: EAGLE3")
    elif speculation.algorithm == "EAGLE3" and names_older_eagle(draft):
        message = (
            f"EAGLE3 is set, but the draft's name says EAGLE, not EAGLE-3 (`{draft[-80:]}`): SGLang"
            " cannot load such a draft as EAGLE-3"
        )
        yield RuleFinding(
            "spec_draft_not_eagle3",
            WARNING,
            f"args.{DRAFT}",
            message,
            f"set {DRAFT} to an EAGLE-3 draft, or write {ALGORITHM}: EAGLE",
        )
    elif speculation.algorithm == "STANDALONE" and draft == config.model_path:
        message = (
            "the model is set as its own draft: each draft step costs as much as a step of the"
            " model, so this is slower than no speculation"
        )
        yield RuleFinding(
            "spec_draft_is_model",
            INFO,
            f"args.{DRAFT}",
            message,
            f"set {DRAFT} to a much smaller model with the same vocabulary",
        )
    elif speculation.algorithm in ("NGRAM", "UNO"):
        refuses = speculation.algorithm == "UNO"
        used = "rejected" if refuses else "not used"
        message = f"{speculation.algorithm} has no draft model: `{DRAFT}` is {used}"
        yield RuleFinding(
            "spec_draft_unused",
            ERROR if refuses else WARNING,
            f"args.{DRAFT}",
            message,
            "leave it out",
        )
