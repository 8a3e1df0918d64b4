"""Owns what a launch needs beside its process, and its removal: secrets, a container's variables,
the container. Starts no server.
"""

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
    """The secrets that an environment names, from this host's file. Raises ConfigError."""
    return read_secrets(secret_names(env), secrets_file(os.environ))


def prepare_command(command: LaunchCommand, secrets: Secrets) -> LaunchCommand:
    """The command to execute, with its secrets: for the process that is started, and for no record.

    Writes the variables of a container to their file, for its owner alone. Raises OSError.
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
    """After the processes ended: end the launch's container, remove its variables, take the secrets
    out of the trial's files.

    What the runtime still holds is added to `left_over`. A container whose processes were asked to
    end before gets no more time.
    """
    left = await end_containers(
        place.folder, place.token, spec.stop_timeout_s if stopped.ended_by == "none" else 0.0
    )
    await asyncio.to_thread(
        (secrets or load_secrets_if_available(spec.env)).mask_folder, place.folder.parent
    )
    return replace(stopped, left_over=(*stopped.left_over, *left))


def load_secrets_if_available(env: Mapping[str, str]) -> Secrets:
    """As `secrets_of`, for a trial that an earlier process of the agent launched: none when they
    cannot be had any more.
    """
    try:
        return load_secrets(env)
    except ConfigError:
        return Secrets()
