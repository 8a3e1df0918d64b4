"""Owns what the controller can tell of a host's refusal before it sends anything there. Pure; the host itself decides, and knows more.

Told early: Python and image, by the patterns that the host's agent shows. Links, variables, arguments and models only the agent judges.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_knowledge.security.path_patterns import has_parent_reference, matches_pattern
from fleet_protos.trial_types import EngineKind, EngineSpec


@dataclass(frozen=True, slots=True)
class Permit:
    """What an agent says of its rules; not `is_strict`: it refuses nothing. `python` or `image`: what a job without either gets."""

    is_strict: bool = False
    pythons: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    python: str = ""
    image: str = ""


def refusal(engine: EngineSpec, permit: Permit) -> tuple[str, str]:
    """(what the host will not start, the key of `allow` that would let it), empty when nothing is known to be refused."""
    if not permit.is_strict or engine.kind is not EngineKind.SGLANG:
        return "", ""
    image = engine.container.image or ("" if engine.python or permit.python else permit.image)
    if image:
        spelled = (image, image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest")
        allowed = any(matches_pattern(text, pattern) for text in spelled for pattern in permit.images)
        return ("", "") if allowed else (f"image {image}", f"images: [{image}]")
    python = engine.python or permit.python or "python3"
    home = python.startswith("~/") or any(pattern.startswith("~/") for pattern in permit.pythons)
    if python.startswith("/") and not home and (has_parent_reference(python) or not any(matches_pattern(python, pattern) for pattern in permit.pythons)):
        return f"Python {python}", f"python: [{python}]"
    if not permit.pythons:
        return f"Python {python}", f"python: [{python}]"
    return "", ""
