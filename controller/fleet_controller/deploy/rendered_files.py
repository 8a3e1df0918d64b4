"""Owns the texts that a deploy writes: unit files from their templates, the agent's configuration,
its launcher. Writes none of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

from fleet_controller.core.inventory import FleetHost
from fleet_controller.deploy.host_facts import SYSTEM
from fleet_controller.deploy.install_location import InstallLocation

_CACHES = (
    "_HOME",
    "_CACHE",
    "_DIR",
    "_CACHE_DIR",
)  # variables of servers that name a folder to write to, such as HF_HOME
LAUNCHER = """\
#!{python}
import sys

from fleet_agent.main import main

sys.exit(main())
"""


def unit_text(place: InstallLocation, host: FleetHost) -> str:
    """The unit file of an installation that systemd supervises.

    Servers in containers need rights that a hardened unit takes away (a container's tools are
    set-uid programs and make namespaces).
    """
    folder = files("fleet_controller.deploy") / "templates"
    hardening = ""
    if place.mode == SYSTEM:
        kind = "containers" if host.allow.images or host.server_image else "servers"
        hardening = (folder / f"hardening-{kind}.conf").read_text(encoding="utf-8")
    text = (folder / f"{place.mode}.service").read_text(encoding="utf-8")
    caches = [
        f"-{value}"
        for key, value in sorted(host.env.items())
        if value.startswith("/") and key.endswith(_CACHES)
    ]
    writable = " ".join(dict.fromkeys((place.state, f"-{place.home}", *caches)))
    text = text.replace("@HARDENING@", hardening.rstrip())
    values = {
        "@ROOT@": place.root, "@CONFIG@": place.config, "@STATE@": place.state, "@USER@": place.owner, "@HOME@": place.home,
        "@WRITABLE@": writable,
    }  # fmt: skip
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def launcher_text(version_folder: str) -> str:
    """The program that systemd or the keeper starts: names its interpreter, so that all that the
    agent starts uses the same.
    """
    return LAUNCHER.format(python=f"{version_folder}/bin/python3")


def agent_listen_address(host: FleetHost) -> str:
    """Where its agent listens: only the host itself reaches the end of an SSH tunnel."""
    if host.through_ssh:
        return f"127.0.0.1:{host.port}"
    return f"[::]:{host.port}" if ":" in host.address else f"0.0.0.0:{host.port}"


def config_text(place: InstallLocation, host: FleetHost) -> str:
    """agent.toml of a host."""
    config = place.config
    top: dict[str, object] = {
        "host": host.name,
        "listen": agent_listen_address(host),
        "state": place.state,
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
            "authorities": f"{config}/ca.crt", "certificate": f"{config}/agent.crt", "key": f"{config}/agent.key",
            "revoked": f"{config}/revoked.json",
        },
        "allow": {
            "python": host.allow.python, "images": host.allow.images, "models": host.allow.models, "mounts": host.allow.mounts,
            "env": host.allow.env, "args": host.allow.args,
        },
        "server": {"python": host.server_python, "image": host.server_image},
        "server.env": host.env,
    }  # fmt: skip
    parts = [
        "# Written by fleetctl deploy from the fleet file; changes here are lost at the next one.",
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
    """A basic string of TOML: JSON's escapes are among TOML's, but for DEL, which JSON leaves as it
    is.
    """
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
