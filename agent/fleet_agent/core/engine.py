"""The interface of an engine: how to launch a server, check it and read its configuration back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fleet_protos.events import ConfigurationProved
from fleet_protos.trial_types import TrialSpec


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """The command that starts one server, as it is recorded: arguments, whole environment, folder.

    `env` holds secrets as `secret://NAME`. For a container, the environment is passed in `env_file`
    (written for the launch, removed after it), and `client_env` is the environment of the started
    process, which is the container runtime's client.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    env_file: str = ""
    client_env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchPlace:
    """What one launch gets from the agent.

    A free port on 127.0.0.1, GPU indices, its own empty folder, and the launch token by which its
    processes are found again.
    """

    port: int
    gpus: tuple[int, ...]
    folder: Path
    token: str


class EngineAdapter(Protocol):
    """A kind of server. The methods keep no state and may be called from any task."""

    launches: bool  # False: the server already runs and is only measured

    def launch_command(self, spec: TrialSpec, place: LaunchPlace) -> LaunchCommand:
        """Return the command for this trial. Raises ConfigError if there is none for it."""
        ...

    def url(self, spec: TrialSpec, place: LaunchPlace) -> str:
        """Return the URL at which the server will answer, without a trailing slash."""
        ...

    async def check_ready(self, spec: TrialSpec, url: str) -> str:
        """Check once whether the server is ready, healthy and the requested one.

        Returns what is missing, or an empty text if it is ready. Raises ServerError if waiting
        longer cannot help, for example because another server answers at `url`.
        """
        ...

    async def prove_configuration(
        self, spec: TrialSpec, url: str, log: Path
    ) -> ConfigurationProved:
        """Read the configuration that took effect from the server, without the host's fingerprint.

        Raises ServerError if the server does not answer any more.
        """
        ...
