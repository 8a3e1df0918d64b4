"""Owns the making of a whole controller from its addresses, and its end in reverse order; the same for daemon and `fleetctl`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet_controller.app.controller import FIRST_CONTACT_S, Fleet
from fleet_controller.app.service import serving
from fleet_controller.hosts.fleet_file_watcher import FleetFileWatch
from fleet_controller.hosts.target_access import reaching
from fleet_controller.hosts.targets import Following, peers
from fleet_controller.pki.authority import Authority
from fleet_controller.pki.expiry_watcher import ExpiryWatch
from fleet_controller.pki.trust_path import trust_folder
from fleet_controller.store.file_lock import held
from fleet_controller.store.store import Store
from fleet_controller.store.writer_lock import claimed
from fleet_protos.errors import ConfigError
from fleet_protos.prometheus_series import RunSeries
from fleet_transport.sockets import listen_address, parse_endpoint
from fleet_transport.tls_client import is_local
from fleet_transport.tls_identity import TlsFiles


@dataclass(frozen=True, slots=True)
class Doors:
    """Where a controller is reached. `listen`: ADDRESS:PORT with the certificates of `trust`, unix:PATH, or empty for its own socket.

    `metrics`: (address, port) of its Prometheus endpoint.
    """

    listen: str = ""
    trust: Path | None = None
    metrics: tuple[str, int] | None = None

    @property
    def tls(self) -> TlsFiles | None:
        """The controller's files where it listens with TLS. Raises ConfigError when it must and has none."""
        if not self.listen or self.listen.startswith("unix:") or (self.trust is None and is_local(self.listen)):
            return None
        if self.trust is None:
            raise ConfigError(f"listening on {self.listen} needs certificates", "`fleetctl init` makes them; --trust DIR names them")
        return Authority.open(self.trust).controller_files()


def doors(options: argparse.Namespace, state: Path) -> Doors:
    """From the options of `fleet-controller`. Raises ConfigError."""
    metrics = options.metrics or (f"127.0.0.1:{options.metrics_port}" if options.metrics_port else "")
    trust = trust_folder(options.trust, state)
    return Doors(options.listen, trust if trust.is_dir() or options.trust else None, parse_endpoint(metrics) if metrics else None)


@dataclass(frozen=True, slots=True)
class Working:
    """A controller at work, and where `fleetctl` reaches it."""

    fleet: Fleet
    address: str
    fleet_file: FleetFileWatch | None = None


@asynccontextmanager
async def working(
    folder: Path,
    agents: Sequence[str] | Following,
    *,
    store: str = "",
    doors: Doors = Doors(),
    first_contact_s: float = FIRST_CONTACT_S,
) -> AsyncIterator[Working]:
    """A controller that works while inside. `agents` are addresses, or whom to follow altogether.

    Raises Conflict when another one works in `folder`, ConfigError.
    """
    follow = agents if isinstance(agents, Following) else Following(peers(agents))
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
    store = store or str(folder / "store.sqlite3")
    with held(folder / "controller.lock"), claimed(store):
        database = Store.open(store)
        series = RunSeries()
        stopping = asyncio.Event()
        try:
            database.take_over()
            if doors.metrics is not None:
                series.serve(doors.metrics[1], doors.metrics[0])
            async with reaching(follow) as follow, asyncio.TaskGroup() as tasks:
                fleet = Fleet(database, folder, follow, series, first_contact_s)
                await fleet.load()
                tasks.create_task(fleet.run(stopping))
                file = FleetFileWatch(follow.file, fleet.follow) if follow.file else None
                rereading = tasks.create_task(file.run()) if file else None
                watching = tasks.create_task(ExpiryWatch(Authority.open(doors.trust), series.registry).run()) if doors.trust else None
                async with _served(fleet, folder, doors) as address:
                    try:
                        yield Working(fleet, address, file)
                    finally:
                        stopping.set()
                        for beside in (watching, rereading):
                            if beside is not None:
                                beside.cancel()
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            database.close()


def _served(fleet: Fleet, folder: Path, doors: Doors) -> AbstractAsyncContextManager[str]:
    here, tls = listen_address(folder, "controller"), doors.tls
    return serving(fleet, here, doors.listen, tls) if tls else serving(fleet, doors.listen or here)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What the user is to see of a group: the task group wraps even the one error that came from inside."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
