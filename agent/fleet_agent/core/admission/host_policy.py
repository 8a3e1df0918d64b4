"""What jobs may use on a host, and the defaults that the host gives to its servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fleet_protos.trial_types import EngineKind, EngineSpec

PATH_PYTHON = "python3"  # on the agent's PATH, if neither the job nor the host names one


@dataclass(frozen=True, slots=True)
class Policy:
    """Glob patterns of what jobs may use. An open policy refuses nothing (a user's local agent).

    `models` are names and folders of models; empty allows every model that brings no code of its
    own. `mounts` are folders of the host that containers may mount and that arguments and variables
    may name. `env` and `args` are variables and arguments allowed in addition to the harmless ones.
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
    """What servers on this host get unless the job says otherwise."""

    python: str = ""
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


def with_defaults(engine: EngineSpec, defaults: ServerDefaults) -> EngineSpec:
    """Return the engine with the host's defaults filled in.

    The job's own variables win. The host's Python or image is used only if the job names neither.
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
    """Return the policy with the host's own default Python and image allowed."""
    python = (*policy.python, *((defaults.python,) if defaults.python else ()))
    return replace(
        policy,
        python=python,
        images=(*policy.images, *((defaults.image,) if defaults.image else ())),
    )
