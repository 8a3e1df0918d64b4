"""Defines what jobs may use on a host, and which defaults the host gives to its servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fleet_protos.trial_types import EngineKind, EngineSpec

PATH_PYTHON = "python3"  # on the agent's PATH, if neither the job nor the host names one


@dataclass(frozen=True, slots=True)
class Policy:
    """Holds glob patterns of what jobs may use on a host. An open policy refuses nothing; a user's
    local agent has one.

    - `models`: names and folders of models. If empty, every model is allowed that brings no code of
      its own.
    - `mounts`: folders of the host. Containers may mount them; arguments and variables may name
      them.
    - `env`, `args`: variables and arguments that are allowed in addition to the harmless ones.
    """

    is_open: bool = True
    python: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    load_only: bool = False  # the host sends load but launches no server


@dataclass(frozen=True, slots=True)
class ServerDefaults:
    """Holds the Python, image and variables of servers on a host whose job does not set its own."""

    python: str = ""
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


def with_defaults(engine: EngineSpec, defaults: ServerDefaults) -> EngineSpec:
    """Return the engine with the host's defaults filled in.

    Variables that the job sets keep the job's values, and those that it removes stay away. The
    host's Python or image is used only if the job names neither a Python nor an image.
    """
    if engine.kind is EngineKind.EXTERNAL:
        return engine
    given = {name: value for name, value in defaults.env.items() if name not in engine.env_removed}
    engine = replace(engine, env={**given, **engine.env})
    if engine.kind is not EngineKind.SGLANG or engine.python or engine.container.image:
        return engine
    if defaults.image and not defaults.python:
        return replace(engine, container=replace(engine.container, image=defaults.image))
    return replace(engine, python=defaults.python or PATH_PYTHON)


def allow_defaults(policy: Policy, defaults: ServerDefaults) -> Policy:
    """Return the policy, extended so that the host's default Python and image are allowed."""
    python = (*policy.python, *((defaults.python,) if defaults.python else ()))
    return replace(
        policy,
        python=python,
        images=(*policy.images, *((defaults.image,) if defaults.image else ())),
    )
