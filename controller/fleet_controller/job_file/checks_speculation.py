"""Owns the speculation rules as findings about variants; the rules themselves are facts about
SGLang, and a draft's config.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path as FilePath

from fleet_controller.job_file.variant_checks import VariantSet, remark_findings
from fleet_controller.yaml.findings import Finding
from fleet_knowledge.server_configuration import ERROR, RuleFinding, ServerConfiguration
from fleet_knowledge.sglang.speculation import speculation_rules
from fleet_knowledge.sglang.speculation.algorithms import is_eagle3_config, names_eagle3
from fleet_knowledge.sglang.speculation.resolved_arguments import (
    ALGORITHM,
    DRAFT,
    canonical_algorithm,
)

_LARGEST_CONFIG_BYTES = 1 << 20


def check_speculation(variant_set: VariantSet) -> Iterator[Finding]:
    """What to tell about the speculation of all variants."""
    yield from remark_findings(
        variant_set, (speculation_rules.apply_speculation_rules, draft_config)
    )


def draft_config(asked: ServerConfiguration) -> Iterator[RuleFinding]:
    """EAGLE for a draft whose config.json says EAGLE-3, where the draft's folder is on this
    machine.
    """
    draft = asked.text(DRAFT)
    if (
        canonical_algorithm(asked.text(ALGORITHM)) == "EAGLE"
        and draft
        and not names_eagle3(draft)
        and is_eagle3_config(_read_draft_config(draft))
    ):
        message = (
            f"{asked.text(ALGORITHM)} is given for a draft whose config.json says EAGLE-3 (`{draft[-80:]}`): the server starts healthy"
            " and accepts exactly 1.00 tokens, so nothing is gained and the measurement is invalid"
        )
        yield RuleFinding(
            "spec_eagle3_as_eagle",
            ERROR,
            f"args.{ALGORITHM}",
            message,
            f"write {ALGORITHM}: EAGLE3",
        )


def _read_draft_config(draft: str) -> dict[str, object]:
    """The draft's config.json; empty when it is not here or no JSON mapping."""
    try:
        with (FilePath(draft).expanduser() / "config.json").open("rb") as stream:
            content = json.loads(stream.read(_LARGEST_CONFIG_BYTES))
    except (OSError, ValueError, RuntimeError):
        return {}
    return content if isinstance(content, dict) else {}
