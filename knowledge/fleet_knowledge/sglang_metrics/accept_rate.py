"""Owns what "accept rate" has meant in SGLang's versions, and its relation to accept length;
measures nothing.

Accept length: output tokens of one verify step, the bonus token counted. It has had one meaning in
all versions, so it is what is stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet_knowledge.release import Release, VersionRange

TOLERANCE = 0.02  # the log prints two digits, and a gauge may be of a slightly other window


class AcceptRateDefinition(StrEnum):
    """One meaning of "accept rate"."""

    OF_STEPS = "of_steps"  # length / (steps + 1)
    OF_TOKENS = "of_tokens"  # length / draft tokens
    OF_DRAFTS = "of_drafts"  # (length - 1) / (draft tokens - 1): accepted drafts / proposed drafts


@dataclass(frozen=True, slots=True)
class AcceptRateRow:
    """Where a definition holds. `place`: `log` also stands for the gauge in /metrics; `meta_info`
    is told for one request.
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
    """The draft of a server: `steps` and `draft_tokens` as in its arguments; None: not known."""

    steps: int | None = None
    draft_tokens: int | None = None

    @classmethod
    def from_arguments(cls, args: Mapping[str, object]) -> DraftShape:
        """From a server's resolved arguments, or a job's."""
        return cls(
            _count(args.get("speculative_num_steps")),
            _count(args.get("speculative_num_draft_tokens")),
        )

    @property
    def denominators(self) -> dict[AcceptRateDefinition, tuple[int, int]]:
        """What is taken off the length and what the rest is divided by, for each definition that
        can be had.
        """
        found = {}
        if self.steps:  # NGRAM has none
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
    """The rate by each definition; empty when no length was measured."""
    if accept_length is None or not math.isfinite(accept_length):
        return {}
    return {name: (accept_length - less) / by for name, (less, by) in shape.denominators.items()}


def length_from_rate(
    rate: float, definition: AcceptRateDefinition, shape: DraftShape
) -> float | None:
    """The accept length behind a rate; None when the draft's shape is not known."""
    found = shape.denominators.get(definition)
    return rate * found[1] + found[0] if found else None


def definition_in_version(version: str, place: str = "log") -> AcceptRateDefinition | None:
    """What a server of `version` means by "accept rate"; None for one that tells no rate, or whose
    version cannot be read.
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
    """The definitions by which `rate` belongs to `accept_length`, within two hundredths; none: the
    two are of other windows.
    """
    return tuple(
        name
        for name, value in accept_rates(accept_length, shape).items()
        if abs(value - rate) <= TOLERANCE
    )


def is_consistent(
    rate: float, accept_length: float, shape: DraftShape, version: str, place: str = "log"
) -> bool | None:
    """Whether a server's rate and length agree by its version's definition; None when that cannot
    be told.
    """
    definition = definition_in_version(version, place)
    expected = accept_rates(accept_length, shape).get(definition) if definition else None
    return None if expected is None else abs(expected - rate) <= TOLERANCE
