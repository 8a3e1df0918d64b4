"""Owns the making of a whole controller from its addresses, and its end in reverse order; the same for daemon and `fleetctl`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from fleet_controller.agents import AgentClient
from fleet_controller.fleet import FIRST_CONTACT_S, Fleet
from fleet_controller.lock import held
from fleet_controller.service import serving
from fleet_controller.store.claim import claimed
from fleet_controller.store.store import Store
from fleet_protos.exposition import RunSeries
from fleet_protos.sockets import listen_address


@dataclass(frozen=True, slots=True)
class Working:
    """A controller at work, and where `fleetctl` reaches it."""

    fleet: Fleet
    address: str


@asynccontextmanager
async def working(
    folder: Path,
    agents: Sequence[str],
    *,
    store: str = "",
    listen: str = "",
    metrics_port: int = 0,
    first_contact_s: float = FIRST_CONTACT_S,
) -> AsyncIterator[Working]:
    """A controller that works while inside. `agents` are addresses. Raises Conflict when another one works in `folder`, ConfigError."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True, mode=0o700)
    store = store or str(folder / "store.sqlite3")
    with held(folder / "controller.lock"), claimed(store):
        database = Store.open(store)
        series = RunSeries()
        if metrics_port:
            series.serve(metrics_port)
        fleet = Fleet(database, folder, [AgentClient(address) for address in agents], series, first_contact_s)
        stopping = asyncio.Event()
        try:
            await fleet.load()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fleet.run(stopping))
                async with serving(fleet, listen or listen_address(folder, "controller")) as address:
                    try:
                        yield Working(fleet, address)
                    finally:
                        stopping.set()
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            database.close()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What the user is to see of a group: the task group wraps even the one error that came from inside."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
