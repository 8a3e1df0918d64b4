"""Connects a command to a named controller, to the running controller of the state folder, or to
the store in that folder.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from fleet_controller.app.socket_probe import is_listening
from fleet_controller.cli.state_folder import StateFolder, resolve_state_folder
from fleet_controller.core.controller_api import Controller, TrialDetail
from fleet_protos.errors import ConfigError, HostUnreachable

if TYPE_CHECKING:
    from fleet_controller.jobs.queries import ReadOnlyController
    from fleet_transport.tls_identity import TlsFiles


@asynccontextmanager
async def open_controller(
    arguments: argparse.Namespace, *, must_run: bool = False
) -> AsyncIterator[Controller]:
    """Connect to the controller that --controller names, else to that of $FLEET_CONTROLLER, else to
    the running controller of the state folder. If there is none, open the store of that folder
    read-only.

    Raises HostUnreachable if there is none and the command needs a running controller (`must_run`).
    """
    state_folder = resolve_state_folder(arguments.state)
    address = controller_address(arguments.controller, state_folder)
    if address:
        from fleet_controller.cli.controller_client import ControllerClient

        async with ControllerClient(
            address, user_tls_files(address, arguments.trust, state_folder)
        ) as remote:
            yield remote
        return
    if must_run:
        raise HostUnreachable(
            f"no controller is running in the state folder {state_folder.path}",
            "start one with `fleetctl up`, or run a job here with `fleetctl run FILE`",
        )
    with open_stored_jobs(state_folder) as jobs:
        yield jobs


def user_tls_files(address: str, trust: str, state_folder: StateFolder) -> TlsFiles | None:
    """Return the user's certificate files in the trust folder, which a network address needs.

    Return None for a Unix socket, and for a loopback address when there is no trust folder. Raises
    ConfigError for a network address without a trust folder.
    """
    if address.startswith("unix:"):
        return None
    from fleet_controller.pki.trust_path import trust_folder_path
    from fleet_transport.tls_client import is_local
    from fleet_transport.tls_identity import TlsFiles

    folder = trust_folder_path(trust, state_folder.path)
    if not folder.is_dir() and not trust:
        if is_local(address):
            return None
        raise ConfigError(
            f"{address} is a network address and needs a certificate, but there is no trust folder"
            f" {folder}",
            "create a certificate with `fleetctl trust issue NAME` on the controller's machine, and"
            " name its folder with --trust DIR",
        )
    return TlsFiles(folder / "ca.crt", folder / "user.crt", folder / "user.key")


@contextmanager
def open_stored_jobs(state_folder: StateFolder) -> Iterator[ReadOnlyController]:
    """Open the store of a state folder read-only. Raises ConfigError when there is no store."""
    from fleet_controller.jobs.queries import ReadOnlyController
    from fleet_controller.store.store import Store

    store = Store.open(str(state_folder.store), read_only=True)
    try:
        yield ReadOnlyController(store, state_folder.artifacts)
    finally:
        store.close()


def controller_address(named: str, state_folder: StateFolder) -> str:
    """Return the address of the named controller, else that of the controller which runs in the
    state folder. Return an empty text if there is neither.
    """
    from fleet_transport.sockets import listen_address

    named = named or os.environ.get("FLEET_CONTROLLER", "")
    here = listen_address(state_folder.controller, "controller")
    return named or (here if is_listening(here) else "")


async def fetch_trial(arguments: argparse.Namespace, *, with_log: bool) -> TrialDetail:
    """Fetch the trial and the attempt that `arguments` name."""
    async with open_controller(arguments) as controller:
        return await controller.trial(arguments.trial, arguments.attempt, with_log)
