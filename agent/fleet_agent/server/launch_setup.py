"""Prepares a launch and cleans up after it: secrets, environment file and container."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace

from fleet_agent.core.engine import LaunchCommand, LaunchPlace
from fleet_agent.server.container_cleanup import end_containers
from fleet_agent.storage.secrets import Secrets, read_secrets, secret_names, secrets_file
from fleet_protos.errors import ConfigError
from fleet_protos.events import ServerStopped
from fleet_protos.trial_types import EngineSpec


def load_secrets(env: Mapping[str, str]) -> Secrets:
    """Read the secrets that an environment refers to from the secrets file of this host. Raises
    ConfigError.
    """
    return read_secrets(secret_names(env), secrets_file(os.environ))


def prepare_command(command: LaunchCommand, secrets: Secrets) -> LaunchCommand:
    """Return the command to execute, with the values of secrets filled in. The result must not be
    recorded.

    The environment of a container is written to a file that only its owner may read. Raises
    OSError.
    """
    env = secrets.fill(command.env)
    if not command.env_file:
        return replace(command, env=env)
    lines = "".join(f"{name}={value}\n" for name, value in env.items())
    with open(
        os.open(command.env_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600),
        "w",
        encoding="utf-8",
    ) as file:
        file.write(lines)
    return replace(command, env=command.client_env)


async def clean_up_launch(
    stopped: ServerStopped, spec: EngineSpec, place: LaunchPlace, secrets: Secrets
) -> ServerStopped:
    """End the launch's container, remove its environment file and mask the secrets in the trial's
    files.

    Call this after the server's processes have ended. Containers that still exist are added to
    `left_over` of the result. A container gets no time to end if its processes were already asked
    to end.
    """
    left = await end_containers(
        place.folder, place.token, spec.stop_timeout_s if stopped.ended_by == "none" else 0.0
    )
    await asyncio.to_thread(
        (secrets or load_secrets_if_available(spec.env)).mask_folder, place.folder.parent
    )
    return replace(stopped, left_over=(*stopped.left_over, *left))


def load_secrets_if_available(env: Mapping[str, str]) -> Secrets:
    """Read the secrets of a trial that an earlier agent process launched.

    Return no secrets if they cannot be read any more.
    """
    try:
        return load_secrets(env)
    except ConfigError:
        return Secrets()
