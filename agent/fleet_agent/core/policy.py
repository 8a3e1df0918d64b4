"""Owns what a job may ask of this host, as values: what is allowed, and the defaults of servers here. Pure; looks nothing up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Policy:
    """Glob patterns of what jobs may name. `is_open`: nothing is refused, as for a user's own local agent."""

    is_open: bool = True
    python: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    load_only: bool = False  # no server is launched here


@dataclass(frozen=True, slots=True)
class ServerDefaults:
    """What servers on this host have unless the job says otherwise."""

    python: str = ""
    image: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
