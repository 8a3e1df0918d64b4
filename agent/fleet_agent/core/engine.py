"""Owns the interface of an engine: how one is started and what it shows of itself. Starts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fleet_protos.events import ConfigurationProved
from fleet_protos.trial_types import TrialSpec


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """One server to start: its argument list, its whole environment and its working folder, as they
    are recorded.

    Secrets stand in `env` as `secret://NAME`. In a container the environment travels in `env_file`
    (it is written for the launch, and removed after it), and the process itself, the runtime's
    client, has `client_env`.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    env_file: str = ""
    client_env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchPlace:
    """What the agent gives one launch: a free port on 127.0.0.1, GPU indices, an empty folder of
    its own.
    """

    port: int
    gpus: tuple[int, ...]
    folder: Path
    token: str


class EngineAdapter(Protocol):
    """A kind of server. All methods take the trial, keep no state, and may be called from any task."""

    launches: bool  # False: the server is somebody else's and is only measured

    def launch_command(self, spec: TrialSpec, place: LaunchPlace) -> LaunchCommand:
        """The process for this trial. Raises ConfigError when it cannot be expressed."""
        ...

    def url(self, spec: TrialSpec, place: LaunchPlace) -> str:
        """Where the server will answer, without a trailing slash."""
        ...

    async def check_ready(self, spec: TrialSpec, url: str) -> str:
        """One look: an empty text when it is ready, healthy and the one that was asked for, else
        what is missing.

        Raises ServerFailed when waiting longer cannot help, such as another server answering at
        `url`.
        """
        ...

    async def prove_configuration(
        self, spec: TrialSpec, url: str, log: Path
    ) -> ConfigurationProved:
        """What took effect, read from the server itself (fingerprint left empty). Raises
        ServerFailed when it stopped answering.
        """
        ...
