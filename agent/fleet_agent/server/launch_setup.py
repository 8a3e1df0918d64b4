"""Prepares a launch and cleans up after it: secrets, environment file and container."""

from __future__ import annotations

import asyncio
import json
import os
import secrets as secrets_module
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from fleet_agent.core.engine import LaunchCommand, LaunchPlace
from fleet_agent.server.container_cleanup import end_containers
from fleet_agent.storage.secrets import Secrets, read_secrets, secret_names, secrets_file
from fleet_protos.errors import ConfigError
from fleet_protos.events import ServerStopped
from fleet_protos.trial_types import EngineSpec

_KEY_BYTES: Final = 32
# with blanks, so that it cannot be the name of a secret of the host
_KEY_NAME: Final = "API key of the server"


def load_secrets(env: Mapping[str, str]) -> Secrets:
    """Read the secrets that an environment refers to from the secrets file of this host. Raises
    ConfigError.
    """
    return read_secrets(secret_names(env), secrets_file(os.environ))


def new_api_key(command: LaunchCommand) -> str:
    """Return a random API key for the server, or an empty text if it gets none. It has hexadecimal
    digits only, because SGLang passes it through a command-line parser.
    """
    return secrets_module.token_hex(_KEY_BYTES) if command.key_file else ""


def with_api_key(secrets: Secrets, api_key: str) -> Secrets:
    """Return the secrets of a launch with its API key, so that the key is masked like them."""
    return secrets.with_secret(_KEY_NAME, api_key) if api_key else secrets


def prepare_command(command: LaunchCommand, secrets: Secrets, api_key: str = "") -> LaunchCommand:
    """Return the command to execute, with the values of secrets filled in. The result must not be
    recorded.

    The environment of a container and the server's API key are written to files that only their
    owner may read. Raises OSError.
    """
    env = secrets.fill(command.env)
    if command.key_file and api_key:
        # JSON, which is YAML too
        _write_private(command.key_file, json.dumps({"api-key": api_key}) + "\n")
        command = replace(command, argv=(*command.argv, "--config", command.key_file))
    if not command.env_file:
        return replace(command, env=env)
    _write_private(command.env_file, "".join(f"{name}={value}\n" for name, value in env.items()))
    return replace(command, env=command.client_env)


def _write_private(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def _take_api_key(path: Path) -> str:
    """Remove the file of a server's API key and return the key; empty if there is none."""
    with suppress(OSError, ValueError, AttributeError):
        key = json.loads(path.read_bytes()).get("api-key", "")
        path.unlink()
        return str(key)
    path.unlink(missing_ok=True)
    return ""


async def clean_up_launch(
    stopped: ServerStopped, spec: EngineSpec, place: LaunchPlace, secrets: Secrets
) -> ServerStopped:
    """End the launch's container, remove its environment file and the server's API key, and mask
    the secrets in the trial's files.

    Call this after the server's processes have ended. Containers that still exist are added to
    `left_over` of the result. A container gets no time to end if its processes were already asked
    to end.
    """
    left = await end_containers(
        place.folder, place.token, spec.stop_timeout_s if stopped.ended_by == "none" else 0.0
    )
    # an agent that was restarted knows the key only from its file
    secrets = with_api_key(
        secrets or load_secrets_if_available(spec.env),
        await asyncio.to_thread(_take_api_key, place.key_file),
    )
    await asyncio.to_thread(secrets.mask_folder, place.folder.parent)
    return replace(stopped, left_over=(*stopped.left_over, *left))


def load_secrets_if_available(env: Mapping[str, str]) -> Secrets:
    """Read the secrets of a trial that an earlier agent process launched.

    Return no secrets if they cannot be read any more.
    """
    try:
        return load_secrets(env)
    except ConfigError:
        return Secrets()
