"""Parses the sweep notation `bs,steps,topk,draft`. Finds what each entry launches, and which entry
repeats an earlier entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fleet_knowledge.sglang.speculation.resolved_arguments import tree_capacity

_ENTRY = re.compile(r"[+-]?\d+")
_FORM = (
    "four whole numbers: batch size, steps, topk, draft tokens, such as 1,3,1,4; 1,0,0,0 is without"
    " speculation"
)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One entry of a sweep, as the server runs it. `batch` is the client's concurrency. `steps` is
    0 without speculation.

    `adjusted_from` is the requested number of draft tokens if the server uses another number.
    `duplicate_of` is the index (from 0) of the entry that this entry repeats. `verdict` is a
    warning that starts with `warn:`, an error that starts with `error:`, or empty.
    """

    text: str
    batch: int = 0
    steps: int = 0
    topk: int = 0
    draft_tokens: int = 0
    adjusted_from: int | None = None
    duplicate_of: int | None = None
    verdict: str = ""

    @property
    def speculates(self) -> bool:
        """Return whether the entry uses speculation."""
        return self.steps > 0

    @property
    def launch_key(self) -> tuple[int, int, int]:
        """Return the settings that decide whether two entries need separate launches.

        The batch size is not among them, since only the client uses it.
        """
        return self.steps, self.topk, self.draft_tokens

    @property
    def is_invalid(self) -> bool:
        """Return whether the entry cannot be launched."""
        return self.verdict.startswith("error:")

    def to_json(self) -> dict[str, Any]:
        """Return the point with the keys of the notation. Keys that do not apply are left out."""
        if self.is_invalid:
            return {"text": self.text, "verdict": self.verdict}
        shape = (
            {"steps": self.steps, "topk": self.topk, "draft": self.draft_tokens}
            if self.speculates
            else {"speculative": False}
        )
        extras = {
            "adjusted_from": self.adjusted_from,
            "duplicate_of": self.duplicate_of,
            "verdict": self.verdict or None,
        }
        return {
            "bs": self.batch,
            **shape,
            **{key: value for key, value in extras.items() if value is not None},
        }


def expand_sweep(entries: Iterable[str]) -> tuple[SweepPoint, ...]:
    """Return one point for each entry of a sweep, in order.

    At topk 1 SGLang itself sets the draft tokens to steps + 1. So entries that differ only in draft
    tokens are the same there.
    """
    points: list[SweepPoint] = []
    for entry in entries:
        point = _point(entry)
        same = next(
            (
                index
                for index, other in enumerate(points)
                if not other.is_invalid and _key(other) == _key(point)
            ),
            None,
        )
        points.append(
            point if point.is_invalid or same is None else replace(point, duplicate_of=same)
        )
    return tuple(points)


def distinct_servers(points: Sequence[SweepPoint]) -> tuple[SweepPoint, ...]:
    """Return one point for each server to launch, in the order of the first entry that needs it."""
    return tuple(
        {point.launch_key: point for point in reversed(points) if not point.is_invalid}.values()
    )[::-1]


def split_entries(text: str) -> tuple[str, ...]:
    """Split a text into entries: its quoted parts, or else the parts between blanks or semicolons.

    Brackets are dropped.
    """
    quoted = re.findall(r"[\"']([^\"']*)[\"']", text)
    if quoted:
        return tuple(quoted)
    return tuple(entry for part in re.split(r"[\s;]+", text) if (entry := part.strip("\"'[](),")))


def _key(point: SweepPoint) -> tuple[int, ...]:
    return (point.batch, *point.launch_key)


def _point(text: str) -> SweepPoint:
    parts = [part.strip() for part in text.strip().split(",")]
    if len(parts) != 4 or not all(_ENTRY.fullmatch(part) for part in parts):
        return SweepPoint(text, verdict=f"error: `{text[:60]}` is not {_FORM}")
    batch, steps, topk, tokens = map(int, parts)
    if batch < 1 or min(steps, topk, tokens) < 0:
        return SweepPoint(
            text,
            verdict=(
                f"error: `{text[:60]}`: the batch size must be at least 1, the other numbers at"
                " least 0"
            ),
        )
    if steps == 0:
        warning = (
            ""
            if topk == 0 and tokens == 0
            else "warn: 0 steps mean no speculation: topk and draft tokens have no effect"
        )
        return SweepPoint(text, batch, verdict=warning)
    if topk == 0 or (topk > 1 and tokens == 0):
        return SweepPoint(
            text,
            verdict=(
                f"error: `{text[:60]}`: {steps} steps need a topk, and a topk above 1 needs draft"
                " tokens"
            ),
        )
    return _speculative(text, batch, (steps, topk, tokens))


def _speculative(text: str, batch: int, asked: tuple[int, int, int]) -> SweepPoint:
    steps, topk, tokens = asked
    if topk == 1:
        return SweepPoint(
            text,
            batch,
            steps,
            topk,
            steps + 1,
            adjusted_from=tokens if tokens not in (0, steps + 1) else None,
        )
    point, capacity = SweepPoint(text, batch, steps, topk, tokens), tree_capacity(steps, topk)
    if tokens - 1 > capacity:
        nodes = f"{topk} + {steps - 1}*{topk}*{topk} = {capacity} nodes + root"
        return replace(point, verdict=f"warn: more draft tokens than the tree can hold ({nodes})")
    if tokens < steps + 1:
        return replace(
            point, verdict=f"warn: {tokens} draft tokens leave out the last of {steps} steps"
        )
    return point
