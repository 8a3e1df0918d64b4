"""Owns what a job may ask of this host, as values, and the defaults that servers have here. Pure;
looks nothing up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fleet_protos.trial_types import EngineKind, EngineSpec

PATH_PYTHON = "python3"  # of the agent's own PATH, where neither job nor host names one


@dataclass(frozen=True, slots=True)
class Policy:
    """Glob patterns of what jobs may name. `is_open`: nothing is refused, as for a user's own local
    agent.

    `models`: names and folders of models; empty: any, but none that brings code of its own.
    `mounts`: folders of the host that containers mount and that arguments and variables may name.
    `env`, `args`: variables and arguments beyond those that are harmless.
    """

    is_open: bool = True
    python: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    load_only: bool = False  # no server is launched here


@dataclass(frozen=True, slots=True)
class ServerDefaults:
    """What servers on this host have unless the job says otherwise: base < these < the job's."""

    python: str = ""
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


def with_defaults(engine: EngineSpec, defaults: ServerDefaults) -> EngineSpec:
    """The engine as it is launched here. The host's Python or image stands in only where the job
    names neither.
    """
    if engine.kind is EngineKind.EXTERNAL:
        return engine
    engine = replace(engine, env={**defaults.env, **engine.env})
    if engine.kind is not EngineKind.SGLANG or engine.python or engine.container.image:
        return engine
    if defaults.image and not defaults.python:
        return replace(engine, container=replace(engine.container, image=defaults.image))
    return replace(engine, python=defaults.python or PATH_PYTHON)


def allow_defaults(policy: Policy, defaults: ServerDefaults) -> Policy:
    """What the host gives by itself it allows too."""
    python = (*policy.python, *((defaults.python,) if defaults.python else ()))
    return replace(
        policy,
        python=python,
        images=(*policy.images, *((defaults.image,) if defaults.image else ())),
    )
