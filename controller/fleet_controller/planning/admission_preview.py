"""Predicts what an agent will refuse, before a trial is sent to its host.

The prediction uses the patterns for Python interpreters and images that the agent advertises. Only
the agent itself, at the start of a trial, judges links, variables, arguments and models.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_knowledge.security.path_patterns import has_parent_reference, matches_pattern
from fleet_protos.trial_types import EngineKind, EngineSpec


@dataclass(frozen=True, slots=True)
class AdvertisedPolicy:
    """The rules of an agent as it advertises them. An agent that is not strict refuses nothing.

    `python` and `image` are the host's defaults for a job that sets neither.
    """

    is_strict: bool = False
    pythons: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    python: str = ""
    image: str = ""


def predicted_refusal(engine: EngineSpec, policy: AdvertisedPolicy) -> tuple[str, str]:
    """Return what the host will refuse to start, and the entry of `allow` that would permit it.
    Both texts are empty if no refusal is predicted.
    """
    if not policy.is_strict or engine.kind is not EngineKind.SGLANG:
        return "", ""
    image = engine.container.image or ("" if engine.python or policy.python else policy.image)
    if image:
        spelled = (
            image,
            image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest",
        )
        allowed = any(
            matches_pattern(text, pattern) for text in spelled for pattern in policy.images
        )
        return ("", "") if allowed else (f"image {image}", f"images: [{image}]")
    python = engine.python or policy.python or "python3"
    home = python.startswith("~/") or any(pattern.startswith("~/") for pattern in policy.pythons)
    if (
        python.startswith("/")
        and not home
        and (
            has_parent_reference(python)
            or not any(matches_pattern(python, pattern) for pattern in policy.pythons)
        )
    ):
        return f"Python {python}", f"python: [{python}]"
    if not policy.pythons:
        return f"Python {python}", f"python: [{python}]"
    return "", ""
