"""Owns the agent's configuration file, agent.toml: read whole, every mistake told at once. Starts
nothing, and changes no file.

    host = "gpu01"                     # names on the command line win over the file
    listen = "0.0.0.0:7433"            # needs [tls]; unix:PATH and 127.0.0.1:PORT do not
    state = "/var/lib/benchfleet"
    gpus = 8                           # default: all that the driver shows
    simulated_gpus = 0
    metrics = "127.0.0.1:9464"         # default: none
    load_only = false                  # true: drives load for other hosts, launches no server
    [labels]      gpu = "h200"
    [tls]         authorities = "/etc/benchfleet/ca.crt"  certificate = "…/agent.crt"  key =
    "…/agent.key"  revoked = "…/revoked.json" [allow]       python = []  images = []  models = []
    mounts = []  env = []  args = [] [server]      python = "/home/USER/ml-env/bin/python3"  image =
    "" [server.env]  NCCL_SOCKET_IFNAME = "eth0"

A file makes the agent strict: jobs may only ask for what [allow] names and what [server] gives.
Without one the agent is open.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet_agent.core.admission.host_policy import Policy, ServerDefaults
from fleet_agent.storage.artifact_retention import KEPT_BYTES
from fleet_protos.errors import ConfigError
from fleet_transport.tls_identity import TlsFiles

HOST_PATTERN = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
VARIABLE_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"
_ENDPOINT = re.compile(r"(.+):(\d{1,5})")
_MAX_FILE_BYTES = 1 << 20

_TABLES: Mapping[str, Mapping[str, type]] = {
    "": {
        "host": str,
        "listen": str,
        "state": str,
        "gpus": int,
        "simulated_gpus": int,
        "metrics": str,
        "load_only": bool,
    },
    "tls": {"authorities": str, "certificate": str, "key": str, "revoked": str},
    "allow": {
        "python": list,
        "images": list,
        "models": list,
        "mounts": list,
        "env": list,
        "args": list,
    },
    "server": {"python": str, "image": str},
}
_FREE_TABLES = ("labels", "server.env")  # tables whose keys are the user's own
_TYPE_NAMES = {
    str: "text in quotes",
    int: "a whole number",
    bool: "true or false",
    list: "a list of texts",
}


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What the file says, or its defaults without one. Empty and None: not said. `metrics`:
    ADDRESS:PORT.
    """

    host: str = ""
    listen: str = ""
    state: Path | None = None
    gpus: int | None = None
    simulated_gpus: int | None = None
    metrics: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    tls: TlsFiles | None = None
    policy: Policy = field(default_factory=Policy)
    server: ServerDefaults = field(default_factory=ServerDefaults)
    file: str = ""
    kept_bytes: int = KEPT_BYTES  # of files of ended trials that the controller has too


def read_config(path: Path) -> AgentConfig:
    """The configuration in a file. Raises ConfigError with all its mistakes, one a line."""
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", "name the agent's configuration by --config FILE"
        ) from error
    if about.st_uid not in (0, os.geteuid()) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        message = f"{path}: others than root and this user (id {os.geteuid()}) may change it, and it says what jobs may do"
        raise ConfigError(message, f"chmod 640 {path}, and chown it to the agent's user or root")
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(
            f"{path}: larger than {_MAX_FILE_BYTES} bytes", "it is no agent configuration"
        )
    return parse_config(content, str(path))


def parse_config(content: bytes, file: str) -> AgentConfig:
    """The configuration that the content of `file` says. Raises ConfigError with all its mistakes,
    one a line.
    """
    try:
        text = content.decode()
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file}: byte {error.start} is not UTF-8", "write it as UTF-8 text"
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: no TOML: {error}", "correct that line") from None
    checker = _ConfigChecker(file, text, [])
    tables = checker.read_tables(document)
    config = _build_config(tables, file)
    _check(config, checker)
    if checker.faults:
        raise ConfigError(
            "\n".join(fault for _, fault in sorted(checker.faults)),
            f"correct {file}; nothing was started",
        )
    return config


@dataclass(frozen=True, slots=True)
class _ConfigChecker:
    """A file that is being checked; `faults` grows."""

    file: str
    text: str
    faults: list[tuple[int, str]]

    def fault(self, key: str, problem: str, fix: str) -> None:
        """Note a mistake at a dotted key."""
        line = _find_line(self.text, key)
        self.faults.append(
            (line, f"{self.file}{f':{line}' if line else ''}: {key}: {problem}: {fix}")
        )

    def read_tables(self, document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Table → its keys of the right kind; everything else is a fault."""
        found: dict[str, dict[str, Any]] = {name: {} for name in (*_TABLES, *_FREE_TABLES)}
        self._read_table("", document, found)
        return found

    def _read_table(
        self, table: str, content: Mapping[str, Any], found: dict[str, dict[str, Any]]
    ) -> None:
        for key, value in content.items():
            dotted = f"{table}.{key}" if table else key
            if dotted in found:
                if isinstance(value, Mapping):
                    self._read_table(dotted, value, found)
                else:
                    self.fault(dotted, "must be a table", f"write [{dotted}] and its keys below it")
            elif table in _FREE_TABLES:
                self._read_free_entry(dotted, key, value, found[table])
            elif key not in _TABLES[table]:
                self.fault(
                    dotted, "unknown key", _suggestion(key, [*_TABLES[table], *_subtables(table)])
                )
            elif not _has_type(value, _TABLES[table][key]):
                seen = _TYPE_NAMES.get(type(value), f"a {type(value).__name__}")
                self.fault(dotted, f"must be {_TYPE_NAMES[_TABLES[table][key]]}", f"it is {seen}")
            else:
                found[table][key] = value

    def _read_free_entry(self, dotted: str, key: str, value: Any, into: dict[str, Any]) -> None:
        if isinstance(value, str):
            into[key] = value
        else:
            self.fault(dotted, "must be text in quotes", f'write {key} = "{value}"')


def _has_type(value: Any, kind: type) -> bool:
    if kind is list:
        return isinstance(value, list) and all(isinstance(entry, str) for entry in value)
    return type(value) is kind


def _subtables(table: str) -> list[str]:
    names = [
        name for name in (*_TABLES, *_FREE_TABLES) if name and name.rpartition(".")[0] == table
    ]
    return [name.rpartition(".")[2] for name in names]


def _suggestion(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def _find_line(text: str, key: str) -> int:
    """The line of a dotted key, 0 when it is written in a way that this does not read (tomllib
    gives no lines).
    """
    *tables, name = key.split(".")
    inside = ""
    for number, line in enumerate(text.split("\n"), start=1):
        if header := re.match(r"\s*\[([^\[\]]+)\]", line):
            inside = re.sub(r"[\s\"']", "", header[1])
            if inside == key:
                return number
        elif inside == ".".join(tables) and re.match(
            rf"\s*[\"']?{re.escape(name)}[\"']?\s*[=.]", line
        ):
            return number
    return 0


def _build_config(tables: Mapping[str, Mapping[str, Any]], file: str) -> AgentConfig:
    top, tls, allow, server = tables[""], tables["tls"], tables["allow"], tables["server"]
    defaults = ServerDefaults(
        server.get("python", ""), server.get("image", ""), dict(tables["server.env"])
    )
    named = {name: tuple(patterns) for name, patterns in allow.items()}
    files = {name: Path(value) for name, value in tls.items() if value}
    return AgentConfig(
        host=top.get("host", ""),
        listen=top.get("listen", ""),
        state=Path(top["state"]) if top.get("state") else None,
        gpus=top.get("gpus"),
        simulated_gpus=top.get("simulated_gpus", 0),
        metrics=top.get("metrics", ""),
        labels=dict(tables["labels"]),
        tls=TlsFiles(**{**dict.fromkeys(("authorities", "certificate", "key"), Path()), **files})
        if files
        else None,
        policy=Policy(is_open=False, load_only=top.get("load_only", False), **named),
        server=defaults,
        file=file,
    )


def _check(config: AgentConfig, checker: _ConfigChecker) -> None:
    """What each key must be beyond its kind."""
    if config.host and not re.fullmatch(HOST_PATTERN, config.host):
        checker.fault(
            "host",
            f"{config.host!r} is no host name",
            "use letters, digits, `.`, `-` and `_`, at most 63",
        )
    if config.state is not None and not config.state.is_absolute():
        checker.fault(
            "state",
            f"{config.state} is not absolute",
            "write the whole path: the daemon has no working folder of its own",
        )
    for key, number in (("gpus", config.gpus), ("simulated_gpus", config.simulated_gpus)):
        if number is not None and not 0 <= number <= 1024:
            checker.fault(key, f"{number} is no number of GPUs", "write 0 to 1024, or leave it out")
    _check_endpoint(config, checker)
    _check_tls(config.tls, checker)
    _check_server(config, checker)
    _check_variables(config.server.env, checker)
    _check_patterns(config, checker)


def _check_endpoint(config: AgentConfig, checker: _ConfigChecker) -> None:
    if (
        config.listen
        and not config.listen.startswith("unix:/")
        and not split_address(config.listen)
    ):
        checker.fault(
            "listen", f"{config.listen!r} is no address", 'write "0.0.0.0:7433" or "unix:/PATH"'
        )
    if config.metrics and not split_address(config.metrics):
        checker.fault(
            "metrics",
            f"{config.metrics!r} is not ADDRESS:PORT",
            'write for example "127.0.0.1:9464"',
        )


def _check_tls(tls: TlsFiles | None, checker: _ConfigChecker) -> None:
    if tls is None:
        return
    for key in ("authorities", "certificate", "key"):
        if getattr(tls, key) == Path():
            checker.fault(
                "tls",
                f"{key} is missing",
                f'add {key} = "/PATH": authorities, certificate and key belong together',
            )
    for key in ("authorities", "certificate", "key", "revoked"):
        path = getattr(tls, key)
        if path not in (None, Path()) and not path.is_absolute():
            checker.fault(f"tls.{key}", f"{path} is not absolute", "write the whole path")


def _check_server(config: AgentConfig, checker: _ConfigChecker) -> None:
    if config.server.python and not config.server.python.startswith(("/", "~/")):
        checker.fault(
            "server.python",
            f"{config.server.python} is not absolute",
            "write the whole path of the Python with SGLang",
        )
    if config.server.python and config.server.image:
        checker.fault(
            "server.image", "stands beside a python", "remove one: a job may choose the other"
        )


def _check_variables(env: Mapping[str, str], checker: _ConfigChecker) -> None:
    for name, value in env.items():
        if name == "CUDA_VISIBLE_DEVICES" or name.startswith("BENCHFLEET_"):
            checker.fault(f"server.env.{name}", "is the agent's to set", "remove it")
        if not re.fullmatch(VARIABLE_PATTERN, name, re.ASCII):
            checker.fault(
                f"server.env.{name}", "is no name of a variable", "use letters, digits and `_`"
            )
        if "\0" in value:
            checker.fault(
                f"server.env.{name}", "has a NUL byte", "remove it: no variable can hold one"
            )


def _check_patterns(config: AgentConfig, checker: _ConfigChecker) -> None:
    for key in ("python", "images", "models", "mounts", "env", "args"):
        for pattern in getattr(config.policy, key):
            if not pattern or any(ord(mark) < 32 for mark in pattern):
                checker.fault(
                    f"allow.{key}",
                    f"{pattern!r} is no pattern",
                    "write a name, or one with `*` and `?`",
                )


def split_address(text: str) -> tuple[str, int] | None:
    """(address, port) of ADDRESS:PORT, None when it is none; an IPv6 address stands in brackets."""
    match = _ENDPOINT.fullmatch(text)
    if (
        match is None
        or not 0 < int(match[2]) < 65536
        or (":" in match[1] and not match[1].startswith("["))
    ):
        return None
    return match[1].strip("[]"), int(match[2])


def resolve_config(options: argparse.Namespace) -> AgentConfig:
    """The configuration of this start: its file, if one is named, under the words of the command
    line. Raises ConfigError.
    """
    config = read_config(options.config) if options.config else AgentConfig(simulated_gpus=8)
    overrides: dict[str, Any] = {
        "host": options.host_name,
        "listen": options.listen,
        "state": options.state,
        "gpus": options.gpus if options.gpus is None or options.gpus >= 0 else None,
        "simulated_gpus": options.simulated_gpus,
        "kept_bytes": options.keep_files << 20,
        "metrics": options.metrics
        or (f"127.0.0.1:{options.metrics_port}" if options.metrics_port else ""),
    }
    config = replace(
        config, **{name: value for name, value in overrides.items() if value not in (None, "")}
    )
    if config.state is None:
        raise ConfigError(
            "no state folder is named", "add --state FOLDER, or `state` to the file of --config"
        )
    if config.metrics and not split_address(config.metrics):
        raise ConfigError(
            f"--metrics {config.metrics!r} is not ADDRESS:PORT",
            "write for example --metrics 127.0.0.1:9464",
        )
    return replace(config, labels={**config.labels, **_labels(options.label)})


def _labels(pairs: Sequence[str]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise ConfigError(
                f"--label {pair!r} is not KEY=VALUE", "write for example --label gpu=h200"
            )
        labels[key] = value
    return labels
