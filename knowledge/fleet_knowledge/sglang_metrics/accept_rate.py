"""Converts between accept rate and accept length. SGLang's versions define the accept rate
differently.

Accept length is the number of output tokens of one verify step, including the bonus token. All
versions define the accept length in the same way, so only accept lengths are stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet_knowledge.release import Release, VersionRange

TOLERANCE = 0.02  # the log prints two digits, and a gauge may be from a slightly different window


class AcceptRateDefinition(StrEnum):
    """Names the definitions of "accept rate" that SGLang's versions use."""

    OF_STEPS = "of_steps"  # length / (steps + 1)
    OF_TOKENS = "of_tokens"  # length / draft tokens
    OF_DRAFTS = "of_drafts"  # (length - 1) / (draft tokens - 1): accepted drafts / proposed drafts


@dataclass(frozen=True, slots=True)
class AcceptRateRow:
    """Says in which versions and in which place a definition holds.

    `place` is `log` or `meta_info`. The gauge in /metrics belongs to `log`. `meta_info` is reported
    for each request.
    """

    versions: VersionRange
    place: str
    definition: AcceptRateDefinition
    source: str


ACCEPT_RATE_DEFINITIONS = (
    AcceptRateRow(
        VersionRange("0.5.3", "0.5.4.post3"),
        "log",
        AcceptRateDefinition.OF_STEPS,
        "sglang 0.5.4 srt/managers/scheduler_metrics_mixin.py",
    ),
    AcceptRateRow(
        VersionRange("0.5.5", "0.5.10.post1"),
        "log",
        AcceptRateDefinition.OF_TOKENS,
        "sglang 0.5.6, 0.5.9, 0.5.10.post1 scheduler_metrics_mixin.py",
    ),
    AcceptRateRow(
        VersionRange("0.5.11"),
        "log",
        AcceptRateDefinition.OF_DRAFTS,
        "sglang 0.5.11, 0.5.12 scheduler_metrics_mixin.py; 0.5.23 metrics_reporter.py",
    ),
    AcceptRateRow(
        VersionRange("0.5.5"),
        "meta_info",
        AcceptRateDefinition.OF_DRAFTS,
        "sglang 0.5.6 - 0.5.23 srt/managers/tokenizer_manager.py",
    ),
)


@dataclass(frozen=True, slots=True)
class DraftShape:
    """Holds the size of a server's draft. `steps` and `draft_tokens` are the server's arguments, or
    None if unknown.
    """

    steps: int | None = None
    draft_tokens: int | None = None

    @classmethod
    def from_arguments(cls, args: Mapping[str, object]) -> DraftShape:
        """Read the size from the resolved arguments of a server or the arguments of a job."""
        return cls(
            _count(args.get("speculative_num_steps")),
            _count(args.get("speculative_num_draft_tokens")),
        )

    @property
    def denominators(self) -> dict[AcceptRateDefinition, tuple[int, int]]:
        """Return (number to subtract from the accept length, divisor of the difference) for each
        definition of the accept rate.
        """
        found = {}
        if self.steps:  # NGRAM does not have steps
            found[AcceptRateDefinition.OF_STEPS] = (0, self.steps + 1)
        if self.draft_tokens:
            found[AcceptRateDefinition.OF_TOKENS] = (0, self.draft_tokens)
        drafts = self.draft_tokens - 1 if self.draft_tokens else self.steps
        if drafts:
            found[AcceptRateDefinition.OF_DRAFTS] = (1, drafts)
        return found


def _count(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None


def accept_rates(
    accept_length: float | None, shape: DraftShape
) -> dict[AcceptRateDefinition, float]:
    """Return the accept rate by each definition. Return an empty map if no length was measured."""
    if accept_length is None or not math.isfinite(accept_length):
        return {}
    return {name: (accept_length - less) / by for name, (less, by) in shape.denominators.items()}


def length_from_rate(
    rate: float, definition: AcceptRateDefinition, shape: DraftShape
) -> float | None:
    """Return the accept length that belongs to an accept rate. Return None if the draft's size is
    unknown.
    """
    found = shape.denominators.get(definition)
    return rate * found[1] + found[0] if found else None


def definition_in_version(version: str, place: str = "log") -> AcceptRateDefinition | None:
    """Return what a server of this version means by "accept rate".

    Return None if the server reports no rate, or if its version cannot be parsed.
    """
    release = Release.parse(version)
    if release is None:
        return None
    return next(
        (
            row.definition
            for row in ACCEPT_RATE_DEFINITIONS
            if row.place == place and row.versions.contains(release)
        ),
        None,
    )


def definitions_that_fit(
    rate: float, accept_length: float, shape: DraftShape
) -> tuple[AcceptRateDefinition, ...]:
    """Return the definitions by which the rate matches the accept length, within 0.02.

    If no definition fits, the rate and the length are from different time windows.
    """
    return tuple(
        name
        for name, value in accept_rates(accept_length, shape).items()
        if abs(value - rate) <= TOLERANCE
    )


def is_consistent(
    rate: float, accept_length: float, shape: DraftShape, version: str, place: str = "log"
) -> bool | None:
    """Return whether a server's accept rate and accept length agree by the definition of its
    version. Return None if the definition or the draft's size is unknown.
    """
    definition = definition_in_version(version, place)
    expected = accept_rates(accept_length, shape).get(definition) if definition else None
    return None if expected is None else abs(expected - rate) <= TOLERANCE
