"""Builds the inventory of a fleet from its checked file. The settings of a host, its group and the
defaults are merged, and name ranges are expanded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleet_controller.core.inventory import AGENT_PORT, Allow, FleetHost, Install, Inventory, Ssh
from fleet_controller.fleet_file.parsed_fleet import Layers, ParsedFleet
from fleet_controller.fleet_file.ssh_settings import FileSshSettings
from fleet_controller.yaml.key_path import dotted

_ALLOW = ("python", "images", "models", "mounts", "env", "args")


def file_ssh_settings(layers: Layers) -> FileSshSettings:
    """Return the SSH settings that the file gives the hosts of an entry."""
    return FileSshSettings(
        user=layers.value("user"),
        port=layers.value("port"),
        identities=layers.value("identity"),
        known_hosts=layers.value("known_hosts"),
        jump=layers.value("proxy_jump"),
    )


def build_inventory(parsed: ParsedFleet, ssh_by_host: dict[str, Ssh]) -> Inventory:
    """Return the fleet's inventory. `ssh_by_host` maps a host's name to its SSH settings."""
    fleet = parsed.fleet
    places = {dotted(path): place for path, place in parsed.document.keys.items()}
    hosts: list[FleetHost] = []
    for layers in parsed.layers():
        hosts.extend(_hosts(layers, ssh_by_host))
        places.update(
            (f"host:{name}", parsed.document.place((*layers.path, "name")))
            for name in layers.names()
        )
    return Inventory(
        hosts=tuple(hosts),
        currency=fleet.currency,
        deploys_at_once=fleet.deploys_at_once,
        give_up_after_s=fleet.give_up_after,
        file=parsed.document.file,
        places=places,
    )


def _hosts(layers: Layers, ssh_by_host: dict[str, Ssh]) -> Iterator[FleetHost]:
    names = layers.names()
    labels, env = layers.merged("labels"), layers.merged("env")
    python, image = server_default(layers)
    for name in names:
        ssh = ssh_by_host[name]
        reach = layers.value("reach") or ("ssh" if ssh.jumps else "direct")
        yield FleetHost(
            name=name,
            address=ssh.address,
            port=layers.value("agent_port") or AGENT_PORT,
            through_ssh=reach == "ssh",
            ssh=ssh,
            labels=labels,
            gpus=layers.value("gpus"),
            simulated_gpus=layers.value("simulated_gpus") or 0,
            server_python=python,
            server_image=image,
            env=env,
            cost_per_hour=layers.value("cost_per_hour") or 0.0,
            load_only=bool(layers.value("load_only")),
            metrics=layers.value("metrics") or "",
            allow=Allow(**{key: _joined_patterns(layers, key) for key in _ALLOW}),
            install=Install(**_install(layers)),
        )


def server_default(layers: Layers) -> tuple[str, str]:
    """Return the Python and the image that servers use by default. Both come from the nearest layer
    that sets one of them, so a Python there replaces an image of a farther layer.
    """
    found = (
        (layer.python or "", layer.image or "")
        for _, layer in layers.each()
        if layer.python or layer.image
    )
    return next(found, ("", ""))


def _joined_patterns(layers: Layers, key: str) -> tuple[str, ...]:
    """Return the patterns that the layers allow, without duplicates. The patterns of the layer that
    applies to the most hosts come first.
    """
    patterns = (
        pattern
        for _, layer in reversed(list(layers.each()))
        for pattern in getattr(layer.allow, key)
    )
    return tuple(dict.fromkeys(patterns))


def _install(layers: Layers) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for _, layer in reversed(list(layers.each())):
        result.update(
            {
                key: value
                for key in Install.__slots__
                if (value := getattr(layer.install, key)) is not None
            }
        )
    return result
