"""Owns the shell script that starts a recorded server by hand. Runs nothing and prints no secret."""

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
_LAUNCH_VARIABLE = (
    "BENCHFLEET_LAUNCH"  # an agent ends servers that carry it: a server started by hand must not
)
_AGENT_ONLY_OPTIONS = (
    "--name",
    "--label",
    "--cidfile",
)  # of a container: by these the agent finds and ends it
_SECRETS_FILE = (
    'secrets="${BENCHFLEET_SECRETS:-${XDG_CONFIG_HOME:-${HOME:?}/.config}/benchfleet/secrets}"'
)
_SET_IT = "set it first: it looks like a secret and is not printed"
_HERE_DOCUMENT_END = "END_OF_VARIABLES"


def repro_script(events: Sequence[Event], about: str) -> str:
    """A POSIX sh script that starts the server of the last ServerLaunched in `events`; `about` is
    told in its head.

    Raises ConfigError when no server was launched.
    """
    for event in reversed(events):
        if isinstance(event.body, ServerLaunched):
            return _script_text(
                event.body, datetime.fromtimestamp(event.time_unix_ns / 1e9, UTC), about
            )
    raise ConfigError(
        f"{about} launched no server",
        "an external server is not started by us; a trial that is still queued has none yet",
    )


@dataclass(frozen=True, slots=True)
class _Variables:
    """The server's environment by where a value comes from. `secrets`: variable → name in the
    secrets file; `hidden`: the shell knows.
    """

    plain: Mapping[str, str]
    secrets: Mapping[str, str]
    hidden: tuple[str, ...]


def _script_text(launched: ServerLaunched, at: datetime, about: str) -> str:
    variables = _classify_variables(launched.env)
    return "\n".join([
        "#!/bin/sh",
        f"# Starts by hand the server of {_one_line(about)},",
        f"# launched at {at:%Y-%m-%d %H:%M:%S} UTC and answering at {_one_line(launched.url)}. PORT=… chooses another port.",
        *_gang_note(launched.argv),
        *_secret_notes(variables),
        "set -eu",
        *_settings(launched, variables),
        *(_container_lines(launched, variables) if _runs_in_container(launched.argv) else _host_lines(launched, variables)),
    ]) + "\n"  # fmt: skip


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _classify_variables(env: Mapping[str, str]) -> _Variables:
    """Raises ConfigError for a name that would be more than a name in a script: what agents tell is
    not believed there.
    """
    if odd := [name for name in env if not _SHELL_NAME.fullmatch(name)]:
        message = f"the launch was told with a variable {odd[0][:60]!a}, which is no name: no script is made of that"
        raise ConfigError(message, "look at the host that told it")
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
        yield f"# It is one of the {_one_line(nodes)} hosts of that server, rank {_one_line(rank)}: start the script of each on its host,"
        yield "# within minutes of each other. DIST_INIT_ADDR=HOST:PORT chooses another place to meet."


def _secret_notes(variables: _Variables) -> Iterator[str]:
    yield "# It gets exactly the recorded environment; nothing is inherited from this shell."
    for name in dict.fromkeys(variables.secrets.values()):
        yield f"# The secret {name} is read from the secrets file of this host, or taken from the variable of that name of this shell."
    for name in variables.hidden:
        yield f"# {name} looks like a secret and is not printed: set it in this shell before."


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
    """(variable, expression of the shell) of those whose value the script does not hold."""
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
    """The variables go through standard input: neither the command line nor a file on disk holds
    them. Raises ConfigError.
    """
    if odd := [name for name, value in variables.plain.items() if "\n" in value]:
        raise ConfigError(
            f"the variable {odd[0]} has a line end, which no variable of a container has",
            "look at the host that told it",
        )
    yield f"exec {' '.join(_quoted_words(_docker_run_by_hand(launched.argv)))} <<{_HERE_DOCUMENT_END}"
    for name, value in variables.plain.items():
        yield f"{name}={_escape_here_document(value)}"
    for name, expression in _shell_references(variables):
        yield f"{name}={expression}"
    yield _HERE_DOCUMENT_END


def _docker_run_by_hand(argv: Sequence[str]) -> list[str]:
    """`docker run` without what belongs to the agent's own launch; its variables from standard
    input.
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
    """A value inside a here-document, where `$`, a backslash and a backquote would be read by the
    shell.
    """
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
