"""Owns the choice of whom a command asks: the controller named, the one that runs here, or the store itself. Starts none."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from grpc import aio

from fleet_protos.errors import HostUnreachable

from fleet_controller.cli.places import places
from fleet_controller.cli.remote import RemoteController
from fleet_controller.report.values import Controller

_ANSWER_S = 2.0


@asynccontextmanager
async def connected(arguments: argparse.Namespace) -> AsyncIterator[Controller]:
    """--controller, else $FLEET_CONTROLLER, else the state folder's controller if it is live, else its store, read only."""
    named = arguments.controller or os.environ.get("FLEET_CONTROLLER", "")
    home = places(arguments.state)
    if named or await is_live(home.controller_socket):
        async with RemoteController(named or f"unix:{home.controller_socket}") as remote:
            yield remote
        return
    raise HostUnreachable("no controller", "start `fleetctl up`")


async def is_live(socket: Path) -> bool:
    """True when a controller accepts connections there; a socket file that a killed one left behind does not."""
    if not socket.exists():
        return False
    async with aio.insecure_channel(f"unix:{socket}") as channel:
        state = channel.get_state(try_to_connect=True)
        try:
            import asyncio

            async with asyncio.timeout(_ANSWER_S):
                await channel.channel_ready()
        except TimeoutError:
            return False
    return bool(state is not None)
