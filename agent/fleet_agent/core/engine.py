"""Defines the interface of engines: launching a server, checking it, reading its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fleet_protos.events import ConfigurationProved
from fleet_protos.trial_types import TrialSpec

KEY_FILE = "api-key.yaml"


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """The command that starts one server, in the form in which it is recorded.

    `env` is the whole environment; it holds secrets as `secret://NAME`. Two fields are for a server
    in a container. `env_file` is the file that passes the environment to the container: it is
    written for the launch and removed afterwards. `client_env` is the environment of the container
    runtime's client, which is the process that the agent starts. `key_file` is the configuration
    file from which the server reads its API key: it is written for the launch, passed with
    `--config` and removed afterwards. It is empty for a server that gets no key.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    env_file: str = ""
    client_env: Mapping[str, str] = field(default_factory=dict)
    key_file: str = ""


@dataclass(frozen=True, slots=True)
class LaunchPlace:
    """Holds what the agent gives to one launch.

    - `port`: a free port on 127.0.0.1
    - `gpus`: GPU indices
    - `folder`: an empty folder that only this launch uses
    - `token`: the launch token, by which the agent finds the processes of the launch
    """

    port: int
    gpus: tuple[int, ...]
    folder: Path
    token: str

    @property
    def key_file(self) -> Path:
        """The file for the server's API key."""
        return self.folder / KEY_FILE


class EngineAdapter(Protocol):
    """Launches and reads one kind of server. Its methods keep no state and may be called from any
    task.
    """

    launches: bool  # False: the server already runs and is only measured

    def launch_command(self, spec: TrialSpec, place: LaunchPlace) -> LaunchCommand:
        """Return the command that starts the trial's server. Raises ConfigError if the trial cannot
        be started.
        """
        ...

    def url(self, spec: TrialSpec, place: LaunchPlace) -> str:
        """Return the URL at which the server will answer, without a trailing slash."""
        ...

    async def check_ready(self, spec: TrialSpec, url: str, api_key: str = "") -> str:
        """Check once whether the requested server is ready and healthy. `api_key` is the key that
        the launch gave to the server.

        Return what is still missing, or an empty text if the server is ready. Raises ServerError if
        waiting longer cannot help, for example because another server answers at `url`.
        """
        ...

    async def prove_configuration(
        self, spec: TrialSpec, url: str, log: Path, api_key: str = ""
    ) -> ConfigurationProved:
        """Read from the server and its log which configuration took effect. The caller adds the
        host's fingerprint.

        Raises ServerError if the server does not answer any more.
        """
        ...
