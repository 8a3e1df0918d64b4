"""Reads the agent's configuration file, agent.toml. The whole file is checked before its mistakes
are reported, so that the user sees all of them at once.

    host = "gpu01"                     # options on the command line override the file
    listen = "0.0.0.0:7433"            # needs [tls]; unix:PATH and 127.0.0.1:PORT do not
    state = "/var/lib/benchfleet"
    gpus = 8                           # default: all that the driver shows
    simulated_gpus = 0
    metrics = "127.0.0.1:9464"         # default: none
    load_only = false                  # true: sends load for other hosts, launches no server
    [labels]
    gpu = "h200"
    [tls]
    authorities = "/etc/benchfleet/ca.crt"
    certificate = "/etc/benchfleet/agent.crt"
    key = "/etc/benchfleet/agent.key"
    revoked = "/etc/benchfleet/revoked.json"
    [allow]                            # lists of patterns
    python = []
    images = []
    models = []
    mounts = []
    env = []
    args = []
    [server]
    python = "/home/USER/ml-env/bin/python3"
    image = ""
    [server.env]
    NCCL_SOCKET_IFNAME = "eth0"

With a configuration file the agent is strict: jobs may only request what [allow] lists and what
[server] sets. Without a configuration file the agent allows everything.
"""

from __future__ import annotations

import argparse
import os
import re
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet_agent.app.config_tables import ConfigChecker
from fleet_agent.core.admission.host_policy import Policy, ServerDefaults
from fleet_agent.storage.artifact_retention import KEPT_BYTES
from fleet_protos.errors import ConfigError
from fleet_transport.tls_identity import TlsFiles

HOST_PATTERN = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
VARIABLE_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*"
_ENDPOINT = re.compile(r"(.+):(\d{1,5})")
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The settings of an agent: those of its configuration file, or the defaults. An empty string
    or None means that a setting was not given. `metrics` is ADDRESS:PORT.
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
    kept_bytes: int = KEPT_BYTES  # limit on files of ended trials that the controller has too


def read_config(path: Path) -> AgentConfig:
    """Return the configuration that a file contains. Raises ConfigError with all mistakes of the
    file, one per line, or if users other than root and this one can change the file.
    """
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}",
            "check the path that is given with --config",
        ) from error
    if about.st_uid not in (0, os.geteuid()) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        message = (
            f"{path} says what jobs may do, but users other than root and this one "
            f"(id {os.geteuid()}) can change it"
        )
        raise ConfigError(
            message, f"run chmod 640 {path}, and chown it to the agent's user or to root"
        )
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(
            f"{path} is larger than {_MAX_FILE_BYTES} bytes",
            "check that this is the agent's configuration file",
        )
    return parse_config(content, str(path))


def parse_config(content: bytes, file: str) -> AgentConfig:
    """Return the configuration that `content` describes. `file` names it in messages. Raises
    ConfigError with all mistakes, one per line.
    """
    try:
        text = content.decode()
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file}: byte {error.start} is not UTF-8", "save the file as UTF-8 text"
        ) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}", "correct that line") from None
    checker = ConfigChecker(file, text, [])
    tables = checker.read_tables(document)
    config = _build_config(tables, file)
    _check(config, checker)
    if checker.faults:
        raise ConfigError(
            "\n".join(fault for _, fault in sorted(checker.faults)),
            f"correct {file}; the agent was not started",
        )
    return config


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


def _check(config: AgentConfig, checker: ConfigChecker) -> None:
    """Check the value of each key; its type has been checked before."""
    if config.host and not re.fullmatch(HOST_PATTERN, config.host):
        checker.fault(
            "host",
            f"{config.host!r} is not a host name",
            "use at most 63 letters, digits, `.`, `-` and `_`",
        )
    if config.state is not None and not config.state.is_absolute():
        checker.fault(
            "state",
            f"{config.state} is not absolute",
            "write the absolute path: the agent runs as a daemon, without a working folder",
        )
    for key, number in (("gpus", config.gpus), ("simulated_gpus", config.simulated_gpus)):
        if number is not None and not 0 <= number <= 1024:
            checker.fault(
                key, f"{number} is out of range", "write a number from 0 to 1024, or remove the key"
            )
    _check_endpoint(config, checker)
    _check_tls(config.tls, checker)
    _check_server(config, checker)
    _check_variables(config.server.env, checker)
    _check_patterns(config, checker)


def _check_endpoint(config: AgentConfig, checker: ConfigChecker) -> None:
    if (
        config.listen
        and not config.listen.startswith("unix:/")
        and not split_address(config.listen)
    ):
        checker.fault(
            "listen",
            f"{config.listen!r} is not an address",
            'write an address such as "0.0.0.0:7433" or "unix:/PATH"',
        )
    if config.metrics and not split_address(config.metrics):
        checker.fault(
            "metrics",
            f"{config.metrics!r} is not ADDRESS:PORT",
            'write an address such as "127.0.0.1:9464"',
        )


def _check_tls(tls: TlsFiles | None, checker: ConfigChecker) -> None:
    if tls is None:
        return
    for key in ("authorities", "certificate", "key"):
        if getattr(tls, key) == Path():
            checker.fault(
                "tls",
                f"{key} is missing",
                f'add {key} = "/PATH": TLS needs all of authorities, certificate and key',
            )
    for key in ("authorities", "certificate", "key", "revoked"):
        path = getattr(tls, key)
        if path not in (None, Path()) and not path.is_absolute():
            checker.fault(f"tls.{key}", f"{path} is not absolute", "write the absolute path")


def _check_server(config: AgentConfig, checker: ConfigChecker) -> None:
    if config.server.python and not config.server.python.startswith(("/", "~/")):
        checker.fault(
            "server.python",
            f"{config.server.python} is not absolute",
            "write the absolute path of the Python interpreter that has SGLang installed",
        )
    if config.server.python and config.server.image:
        checker.fault(
            "server.image",
            "this key cannot be set together with server.python",
            "remove server.python or server.image; a job can still name either if [allow] lists it",
        )


def _check_variables(env: Mapping[str, str], checker: ConfigChecker) -> None:
    for name, value in env.items():
        if name == "CUDA_VISIBLE_DEVICES" or name.startswith("BENCHFLEET_"):
            checker.fault(
                f"server.env.{name}", "the agent sets this variable itself", "remove this line"
            )
        if not re.fullmatch(VARIABLE_PATTERN, name, re.ASCII):
            checker.fault(
                f"server.env.{name}",
                "this is not the name of an environment variable",
                "use letters, digits and `_`",
            )
        if "\0" in value:
            checker.fault(
                f"server.env.{name}",
                "the value contains a NUL byte",
                "remove the NUL byte: an environment variable cannot contain it",
            )


def _check_patterns(config: AgentConfig, checker: ConfigChecker) -> None:
    for key in ("python", "images", "models", "mounts", "env", "args"):
        for pattern in getattr(config.policy, key):
            if not pattern or any(ord(mark) < 32 for mark in pattern):
                checker.fault(
                    f"allow.{key}",
                    f"{pattern!r} is not a pattern",
                    "write a name; `*` and `?` in it match any characters",
                )


def split_address(text: str) -> tuple[str, int] | None:
    """Split ADDRESS:PORT into (address, port). Return None for any other text. An IPv6 address must
    be in brackets.
    """
    match = _ENDPOINT.fullmatch(text)
    if (
        match is None
        or not 0 < int(match[2]) < 65536
        or (":" in match[1] and not match[1].startswith("["))
    ):
        return None
    return match[1].strip("[]"), int(match[2])


def resolve_config(options: argparse.Namespace) -> AgentConfig:
    """Return the settings for this start of the agent. They come from the file of --config, if it
    is given; other options override them. Raises ConfigError if a setting is missing or invalid.
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
            "no state folder is given",
            "add the option --state FOLDER, or the key `state` in the configuration file",
        )
    if config.metrics and not split_address(config.metrics):
        raise ConfigError(
            f"--metrics {config.metrics!r} is not ADDRESS:PORT",
            "write an address such as --metrics 127.0.0.1:9464",
        )
    return replace(config, labels={**config.labels, **_labels(options.label)})


def _labels(pairs: Sequence[str]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise ConfigError(
                f"--label {pair!r} is not KEY=VALUE", "write a label such as --label gpu=h200"
            )
        labels[key] = value
    return labels
