"""Owns the shell script that starts a recorded server by hand. Runs nothing and prints no secret."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime

from fleet_protos.errors import ConfigError
from fleet_protos.events import Event, ServerLaunched

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)
_NO_SECRET = {"TOKENIZERS_PARALLELISM"}
_SECRET_OPTIONS = {"--api-key", "--admin-api-key", "--ssl-keyfile-password"}
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MARK = "BENCHFLEET_LAUNCH"  # an agent ends servers that carry it: a server started by hand must not


def repro_script(events: Sequence[Event], about: str) -> str:
    """A POSIX sh script that starts the server of the last ServerLaunched in `events`; `about` is told in its head.

    Raises ConfigError when no server was launched.
    """
    for event in reversed(events):
        if isinstance(event.body, ServerLaunched):
            return _script(event.body, datetime.fromtimestamp(event.time_unix_ns / 1e9, UTC), about)
    raise ConfigError(f"{about} launched no server", "an external server is not started by us; a trial that is still queued has none yet")


def _script(launched: ServerLaunched, at: datetime, about: str) -> str:
    secrets = sorted(name for name in launched.env if _is_secret(name))
    plain = sorted(name for name in launched.env if name != _MARK and name not in secrets)
    lines = [
        "#!/bin/sh",
        f"# Starts by hand the server of {' '.join(about.split())},",
        f"# launched at {at:%Y-%m-%d %H:%M:%S} UTC and answering at {' '.join(launched.url.split())}.",
        "# It gets exactly the recorded environment; nothing is inherited from this shell.",
        *(f"# {name} looks like a secret and is not printed: set it in this shell before." for name in secrets),
        "set -eu",
        "exec env -i \\",
        *(f"  {shlex.quote(f'{name}={launched.env[name]}')} \\" for name in plain),
        *(f"  {_from_shell(name)} \\" for name in secrets if _SHELL_NAME.fullmatch(name)),
    ]
    return "\n".join([*lines, *_command(launched.argv)]) + "\n"


def _is_secret(name: str) -> bool:
    return bool(_SECRET.search(name)) and name not in _NO_SECRET


def _from_shell(name: str) -> str:
    return f'{name}="${{{name}:?set it first: it looks like a secret and is not printed}}"'


def _command(argv: Sequence[str]) -> list[str]:
    words = []
    hide = False
    for word in argv:
        option, equals, _ = word.partition("=")
        if hide:
            words.append('"${API_KEY:?set it first: it looks like a secret and is not printed}"')
        elif equals and option in _SECRET_OPTIONS:
            words.append(f'{option}="${{API_KEY:?set it first: it looks like a secret and is not printed}}"')
        else:
            words.append(shlex.quote(word))
        hide = not hide and not equals and word in _SECRET_OPTIONS
    return [f"  {' '.join(words)}"]
