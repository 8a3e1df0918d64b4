"""Owns the choice of whom a command asks: the controller named, the one that runs here, or the store itself. Starts none."""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from fleet_controller.cli.places import Places, places
from fleet_controller.liveness import is_live
from fleet_controller.report.values import Controller

if TYPE_CHECKING:
    from fleet_controller.reading import StoredJobs


@asynccontextmanager
async def connected(arguments: argparse.Namespace) -> AsyncIterator[Controller]:
    """--controller, else $FLEET_CONTROLLER, else the state folder's controller if it is live, else its store, read only."""
    home = places(arguments.state)
    address = controller_address(arguments.controller, home)
    if address:
        from fleet_controller.cli.remote import RemoteController

        async with RemoteController(address) as remote:
            yield remote
        return
    with stored(home) as jobs:
        yield jobs


@contextmanager
def stored(home: Places) -> Iterator[StoredJobs]:
    """The store of a state folder, read only. Raises ConfigError when nothing was ever run there."""
    from fleet_controller.reading import StoredJobs
    from fleet_controller.store.store import Store

    store = Store.open(str(home.store), read_only=True)
    try:
        yield StoredJobs(store, home.artifacts)
    finally:
        store.close()


def controller_address(named: str, home: Places) -> str:
    """Where a controller is to be asked; empty when none was named and none is live in the state folder."""
    from fleet_protos.sockets import listen_address

    named = named or os.environ.get("FLEET_CONTROLLER", "")
    here = listen_address(home.controller, "controller")
    return named or (here if is_live(here) else "")
