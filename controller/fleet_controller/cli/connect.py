"""Owns the choice of whom a command asks: the controller named, the one that runs here, or the store itself. Starts none."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fleet_protos.errors import HostUnreachable

from fleet_controller.cli.places import places
from fleet_controller.report.values import Controller


@asynccontextmanager
async def connected(arguments: argparse.Namespace) -> AsyncIterator[Controller]:
    """--controller, else $FLEET_CONTROLLER, else the state folder's controller if it is live, else its store, read only."""
    named = arguments.controller or os.environ.get("FLEET_CONTROLLER", "")
    home = places(arguments.state)
    if named or is_live(home.controller_socket):
        from fleet_controller.cli.remote import RemoteController

        async with RemoteController(named or f"unix:{home.controller_socket}") as remote:
            yield remote
        return
    raise HostUnreachable("no controller", "start `fleetctl up`")


def is_live(path: Path) -> bool:
    """True when a controller accepts connections there; a socket file that a killed one left behind does not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True
