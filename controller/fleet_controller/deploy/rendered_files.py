"""Renders the files that a deploy writes for the agent: systemd unit, configuration and
launcher.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

from fleet_controller.core.inventory import FleetHost
from fleet_controller.deploy.host_facts import SYSTEM
from fleet_controller.deploy.install_location import InstallLocation

# The ends of variable names whose value is a folder that a server writes to, such as HF_HOME
_CACHES = ("_HOME", "_CACHE", "_DIR", "_CACHE_DIR")
LAUNCHER = """\
#!{python}
import sys

from fleet_agent.main import main

sys.exit(main())
"""


def unit_text(location: InstallLocation, host: FleetHost) -> str:
    """Return the unit file of an installation that systemd supervises.

    Servers in containers need rights that full hardening takes away: container tools are set-uid
    programs and create namespaces.
    """
    folder = files("fleet_controller.deploy") / "templates"
    hardening = ""
    if location.mode == SYSTEM:
        kind = "containers" if host.allow.images or host.server_image else "servers"
        hardening = (folder / f"hardening-{kind}.conf").read_text(encoding="utf-8")
    text = (folder / f"{location.mode}.service").read_text(encoding="utf-8")
    caches = [
        f"-{value}"
        for key, value in sorted(host.env.items())
        if value.startswith("/") and key.endswith(_CACHES)
    ]
    writable = " ".join(dict.fromkeys((location.state, f"-{location.home}", *caches)))
    text = text.replace("@HARDENING@", hardening.rstrip())
    values = {
        "@ROOT@": location.root,
        "@CONFIG@": location.config,
        "@STATE@": location.state,
        "@USER@": location.owner,
        "@HOME@": location.home,
        "@WRITABLE@": writable,
    }
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def launcher_text(version_folder: str) -> str:
    """Return the text of the program that systemd or the keeper starts.

    It names its interpreter, so that everything the agent starts uses the same interpreter.
    """
    return LAUNCHER.format(python=f"{version_folder}/bin/python3")


def agent_listen_address(host: FleetHost) -> str:
    """Return the address that the agent listens on. Behind an SSH tunnel this is loopback only."""
    if host.through_ssh:
        return f"127.0.0.1:{host.port}"
    return f"[::]:{host.port}" if ":" in host.address else f"0.0.0.0:{host.port}"


def config_text(location: InstallLocation, host: FleetHost) -> str:
    """Return the content of a host's agent.toml."""
    config = location.config
    top: dict[str, object] = {
        "host": host.name,
        "listen": agent_listen_address(host),
        "state": location.state,
    }
    if host.gpus is not None:
        top["gpus"] = host.gpus
    top |= {
        "simulated_gpus": host.simulated_gpus,
        "metrics": host.metrics,
        "load_only": host.load_only,
    }
    tables: dict[str, Mapping[str, object]] = {
        "labels": host.labels,
        "tls": {
            "authorities": f"{config}/ca.crt",
            "certificate": f"{config}/agent.crt",
            "key": f"{config}/agent.key",
            "revoked": f"{config}/revoked.json",
        },
        "allow": {
            "python": host.allow.python,
            "images": host.allow.images,
            "models": host.allow.models,
            "mounts": host.allow.mounts,
            "env": host.allow.env,
            "args": host.allow.args,
        },
        "server": {"python": host.server_python, "image": host.server_image},
        "server.env": host.env,
    }
    parts = [
        "# Written by fleetctl deploy from the fleet file. The next deploy overwrites this file.",
        *_toml_lines(top),
    ]
    for name, table in tables.items():
        parts += ["", f"[{name}]", *_toml_lines(table)]
    return "\n".join(parts) + "\n"


def _toml_lines(table: Mapping[str, object]) -> list[str]:
    return [
        f"{_toml_string(key) if not _is_bare_key(key) else key} = {_toml_value(value)}"
        for key, value in table.items()
    ]


def _is_bare_key(key: str) -> bool:
    return key.isascii() and key.replace("_", "").replace("-", "").isalnum()


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _toml_string(value)
    assert isinstance(value, Sequence)
    return f"[{', '.join(_toml_string(str(item)) for item in value)}]"


def _toml_string(text: str) -> str:
    """Return a TOML basic string.

    JSON's escapes are valid in TOML. Only DEL, which JSON does not escape, is escaped in addition.
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
