"""Builds a controller from its parts and stops the parts in reverse order. The daemon and
`fleetctl` both use it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet_controller.app.controller import FIRST_CONTACT_S, FleetController
from fleet_controller.app.service import serve_controller
from fleet_controller.hosts.fleet_file_watcher import FleetFileWatcher
from fleet_controller.hosts.target_access import open_tunnels
from fleet_controller.hosts.targets import FleetTargets, targets_of
from fleet_controller.pki.authority import Authority
from fleet_controller.pki.expiry_watcher import ExpiryWatcher
from fleet_controller.pki.trust_path import trust_folder_path
from fleet_controller.store.file_lock import hold_lock
from fleet_controller.store.store import Store
from fleet_controller.store.writer_lock import hold_writer_lock
from fleet_protos.errors import ConfigError, first_error
from fleet_protos.prometheus_series import RunSeries
from fleet_transport.metrics_endpoint import serve_metrics
from fleet_transport.sockets import listen_address, parse_endpoint
from fleet_transport.tls_client import is_local
from fleet_transport.tls_identity import TlsFiles


@dataclass(frozen=True, slots=True)
class ControllerEndpoints:
    """The addresses at which a controller listens.

    - `listen`: ADDRESS:PORT or unix:PATH; if empty, the socket in the controller's state folder.
    - `trust`: the trust folder with the certificates for ADDRESS:PORT.
    - `metrics`: (address, port) of the Prometheus endpoint; None for no endpoint.
    """

    listen: str = ""
    trust: Path | None = None
    metrics: tuple[str, int] | None = None

    @property
    def tls(self) -> TlsFiles | None:
        """Return the controller's TLS files, or None if it listens without TLS. Raises ConfigError
        if TLS is needed and no trust folder is given.
        """
        if (
            not self.listen
            or self.listen.startswith("unix:")
            or (self.trust is None and is_local(self.listen))
        ):
            return None
        if self.trust is None:
            raise ConfigError(
                f"listening on {self.listen} needs certificates",
                "`fleetctl init --fleet` creates them; --trust DIR names their folder",
            )
        return Authority.open(self.trust).controller_files()


def endpoints_from_options(options: argparse.Namespace, state: Path) -> ControllerEndpoints:
    """Return the endpoints that the options of `fleet-controller` ask for. Raises ConfigError."""
    metrics = options.metrics or (
        f"127.0.0.1:{options.metrics_port}" if options.metrics_port else ""
    )
    trust = trust_folder_path(options.trust, state)
    return ControllerEndpoints(
        options.listen,
        trust if trust.is_dir() or options.trust else None,
        parse_endpoint(metrics) if metrics else None,
    )


@dataclass(frozen=True, slots=True)
class RunningController:
    """A running controller with the address at which `fleetctl` reaches it."""

    fleet: FleetController
    address: str
    fleet_file: FleetFileWatcher | None = None


@asynccontextmanager
async def start_controller(
    folder: Path,
    agents: Sequence[str] | FleetTargets,
    *,
    store: str = "",
    endpoints: ControllerEndpoints = ControllerEndpoints(),
    first_contact_s: float = FIRST_CONTACT_S,
    only_job: str | None = None,
) -> AsyncIterator[RunningController]:
    """Run a controller in the with block. `agents` holds the addresses of agents, or all targets of
    a fleet. `only_job`: see `FleetController.load`.

    Raises Conflict if another controller works in `folder` or on the store. Raises ConfigError for
    settings that cannot be used. Raises StoreLost if the store is lost while the controller runs.
    """
    targets = agents if isinstance(agents, FleetTargets) else FleetTargets(targets_of(agents))
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
    store = store or str(folder / "store.sqlite3")
    with hold_lock(folder / "controller.lock") as folder_lock, hold_writer_lock(store) as lock:
        database = Store.open(store)
        series = RunSeries()
        stopping = asyncio.Event()
        try:
            database.take_over((folder_lock, lock))
            async with open_tunnels(targets) as targets, asyncio.TaskGroup() as tasks:
                fleet = FleetController(database, folder, targets, series, first_contact_s)
                await fleet.load(only_job)
                if endpoints.metrics is not None:  # not before: the load counts old failures
                    serve_metrics(series.registry, endpoints.metrics[1], endpoints.metrics[0])
                tasks.create_task(fleet.run(stopping))
                watcher = (
                    FleetFileWatcher(targets.file, fleet.apply_inventory) if targets.file else None
                )
                watcher_task = tasks.create_task(watcher.run()) if watcher else None
                expiry_task = (
                    tasks.create_task(
                        ExpiryWatcher(Authority.open(endpoints.trust), series.registry).run()
                    )
                    if endpoints.trust
                    else None
                )
                async with _start_service(fleet, folder, endpoints) as address:
                    try:
                        yield RunningController(fleet, address, watcher)
                    finally:
                        stopping.set()
                        for background_task in (expiry_task, watcher_task):
                            if background_task is not None:
                                background_task.cancel()
        except BaseExceptionGroup as group:
            raise first_error(group) from group
        finally:
            database.close()


def _start_service(
    fleet: FleetController, folder: Path, endpoints: ControllerEndpoints
) -> AbstractAsyncContextManager[str]:
    local_address, tls = listen_address(folder, "controller"), endpoints.tls
    return (
        serve_controller(fleet, local_address, endpoints.listen, tls)
        if tls
        else serve_controller(fleet, endpoints.listen or local_address)
    )
