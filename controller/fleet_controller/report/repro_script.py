"""Writes a shell script, without secrets, that starts a recorded server by hand."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath

from fleet_protos.errors import ConfigError
from fleet_protos.events import Event, ServerLaunched

_SECRET = re.compile(
    r"(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)$", re.IGNORECASE
)
_SECRET_OPTIONS = {"--api-key", "--admin-api-key", "--ssl-keyfile-password"}
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_REFERENCE = re.compile(r"secret://([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
# An agent stops servers with this variable, so a server started by hand must not have it.
_LAUNCH_VARIABLE = "BENCHFLEET_LAUNCH"
# The agent finds and stops a container by these options.
_AGENT_ONLY_OPTIONS = ("--name", "--label", "--cidfile")
_SECRETS_FILE = (
    'secrets="${BENCHFLEET_SECRETS:-${XDG_CONFIG_HOME:-${HOME:?}/.config}/benchfleet/secrets}"'
)
_SET_IT = "set this variable first: its value looks like a secret and is not printed"
_HERE_DOCUMENT_END = "END_OF_VARIABLES"


def repro_script(events: Sequence[Event], about: str) -> str:
    """Return a POSIX sh script that starts the server of the last ServerLaunched in `events`.

    `about` names the trial in the script's first comment. Raises ConfigError when no server was
    launched.
    """
    for event in reversed(events):
        if isinstance(event.body, ServerLaunched):
            return _script_text(
                event.body, datetime.fromtimestamp(event.time_unix_ns / 1e9, UTC), about
            )
    raise ConfigError(
        f"{about} launched no server",
        "benchfleet does not start an external server, and a queued trial has no server yet",
    )


@dataclass(frozen=True, slots=True)
class _Variables:
    """Holds the server's environment variables, sorted by the source of each value.

    `plain` maps variables to values. `secrets` maps variables to names in the secrets file. The
    values of `hidden` variables come from the user's shell.
    """

    plain: Mapping[str, str]
    secrets: Mapping[str, str]
    hidden: tuple[str, ...]


def _script_text(launched: ServerLaunched, at: datetime, about: str) -> str:
    variables = _classify_variables(launched.env)
    return (
        "\n".join(
            [
                "#!/bin/sh",
                f"# Starts the server of {_one_line(about)} by hand.",
                f"# It was launched at {at:%Y-%m-%d %H:%M:%S} UTC and served"
                f" {_one_line(launched.url)}. PORT=… chooses another port.",
                *_gang_note(launched.argv),
                *_secret_notes(variables),
                "set -eu",
                *_settings(launched, variables),
                *(
                    _container_lines(launched, variables)
                    if _runs_in_container(launched.argv)
                    else _host_lines(launched, variables)
                ),
            ]
        )
        + "\n"
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _classify_variables(env: Mapping[str, str]) -> _Variables:
    """Sort variables by the source of their value.

    Raises ConfigError for a name that is not a shell name: agents are not trusted to send only
    names, and the script would run whatever else a name contains.
    """
    if odd := [name for name in env if not _SHELL_NAME.fullmatch(name)]:
        name = odd[0][:60]
        raise ConfigError(
            f"the recorded launch has the variable {name!a}, which is not a valid name;"
            " no script was made",
            "check the host that reported this launch",
        )
    secrets = {
        name: found[1]
        for name, value in sorted(env.items())
        if (found := _REFERENCE.fullmatch(value))
    }
    left = [name for name in sorted(env) if name != _LAUNCH_VARIABLE and name not in secrets]
    hidden = tuple(name for name in left if _SECRET.search(name))
    return _Variables({name: env[name] for name in left if name not in hidden}, secrets, hidden)


def _gang_note(argv: Sequence[str]) -> Iterator[str]:
    nodes, rank = (_value_of(argv, option) for option in ("--nnodes", "--node-rank"))
    if nodes and rank:
        yield (
            f"# This is rank {_one_line(rank)} of a server over {_one_line(nodes)} hosts: run the"
            " script of each rank on its host,"
        )
        yield (
            "# within minutes of each other. DIST_INIT_ADDR=HOST:PORT chooses another rendezvous"
            " address."
        )


def _secret_notes(variables: _Variables) -> Iterator[str]:
    yield "# The server gets exactly the recorded environment; it inherits nothing from this shell."
    for name in dict.fromkeys(variables.secrets.values()):
        yield (
            f"# The secret {name} is read from this host's secrets file, unless this shell sets a"
            " variable of that name."
        )
    for name in variables.hidden:
        yield f"# {name} looks like a secret and is not printed: set it in this shell first."


def _settings(launched: ServerLaunched, variables: _Variables) -> Iterator[str]:
    if port := _value_of(launched.argv, "--port"):
        yield f"port=${{PORT:-{shlex.quote(port)}}}"
    if meet := _value_of(launched.argv, "--dist-init-addr"):
        yield f"meet=${{DIST_INIT_ADDR:-{shlex.quote(meet)}}}"
    if variables.secrets:
        yield _SECRETS_FILE
    for name in dict.fromkeys(variables.secrets.values()):
        yield f"{name}=${{{name}:-$(sed -n 's/^{name}=//p' \"$secrets\")}}"


def _value_of(argv: Sequence[str], option: str) -> str:
    return next((value for word, value in itertools.pairwise(argv) if word == option), "")


def _shell_references(variables: _Variables) -> Iterator[tuple[str, str]]:
    """Yield the name and a shell expression of each variable that has its value outside of the
    script.
    """
    for name, secret in variables.secrets.items():
        yield name, f"${{{secret}:?no line {secret}=… in $secrets}}"
    for name in variables.hidden:
        if _SHELL_NAME.fullmatch(name):
            yield name, f"${{{name}:?{_SET_IT}}}"


def _host_lines(launched: ServerLaunched, variables: _Variables) -> Iterator[str]:
    yield "exec env -i \\"
    for name, value in variables.plain.items():
        yield f"  {shlex.quote(f'{name}={value}')} \\"
    for name, expression in _shell_references(variables):
        yield f'  {name}="{expression}" \\'
    yield f"  {' '.join(_quoted_words(launched.argv))}"


def _runs_in_container(argv: Sequence[str]) -> bool:
    return (
        len(argv) > 1
        and PurePosixPath(argv[0]).name in ("docker", "podman")
        and argv[1] == "run"
        and "--env-file" in argv
    )


def _container_lines(launched: ServerLaunched, variables: _Variables) -> Iterator[str]:
    """Yield the lines for a container. Its variables are read from standard input, so that no
    command line and no file contains them.

    Raises ConfigError for a value with a line end, which an environment file cannot hold.
    """
    if odd := [name for name, value in variables.plain.items() if "\n" in value]:
        raise ConfigError(
            f"the value of the variable {odd[0]} has a line end, which a container's variable"
            " cannot have",
            "check the host that reported this launch",
        )
    command = " ".join(_quoted_words(_docker_run_by_hand(launched.argv)))
    yield f"exec {command} <<{_HERE_DOCUMENT_END}"
    for name, value in variables.plain.items():
        yield f"{name}={_escape_here_document(value)}"
    for name, expression in _shell_references(variables):
        yield f"{name}={expression}"
    yield _HERE_DOCUMENT_END


def _docker_run_by_hand(argv: Sequence[str]) -> list[str]:
    """Return the `docker run` command without the agent's own options, and with the variables from
    standard input.
    """
    image = argv.index("--env-file")
    kept, skip = [], False
    for index, word in enumerate(argv):
        drop = skip or (index < image and word in _AGENT_ONLY_OPTIONS)
        skip = not skip and drop
        if not drop:
            kept.append("/dev/stdin" if index == image + 1 else word)
    return kept


def _escape_here_document(value: str) -> str:
    """Escape `$`, backslashes and backquotes, which the shell expands in a here-document."""
    return re.sub(r"([\\$`])", r"\\\1", value)


def _quoted_words(argv: Sequence[str]) -> Iterator[str]:
    before = ""
    for word in argv:
        option, equals, _ = word.partition("=")
        if before in _SECRET_OPTIONS:
            yield f'"${{API_KEY:?{_SET_IT}}}"'
        elif equals and option in _SECRET_OPTIONS:
            yield f'{option}="${{API_KEY:?{_SET_IT}}}"'
        else:
            yield {"--port": '"$port"', "--dist-init-addr": '"$meet"'}.get(before) or shlex.quote(
                word
            )
        before = "" if before in _SECRET_OPTIONS else word
