"""Owns a controller with a local agent on this machine, for as long as a command needs them. Knows no job."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fleet_controller.app.bootstrap import Doors, Working, working
from fleet_controller.app.local_agent import AgentPlace, LocalAgent
from fleet_controller.app.socket_probe import is_live
from fleet_controller.cli.state_folder import Places, host_name, places
from fleet_protos.errors import ConfigError, Conflict, FleetError
from fleet_protos.escape import LOG_FORMAT, PlainFormatter
from fleet_transport.sockets import listen_address


@dataclass(frozen=True, slots=True)
class Here:
    """This machine as a command uses it. `metrics_port` 0: no Prometheus endpoint."""

    home: Places
    host_name: str
    labels: tuple[str, ...] = ()
    metrics_port: int = 0

    @property
    def doors(self) -> Doors:
        """Its own socket, and the Prometheus endpoint if one was asked for."""
        return Doors(metrics=("127.0.0.1", self.metrics_port) if self.metrics_port else None)


def here(arguments: argparse.Namespace) -> Here:
    """From the options of `run`, `resume` and `up`."""
    return Here(places(arguments.state), arguments.host_name or host_name(), tuple(arguments.label), arguments.metrics_port)


def refuse_a_second(home: Places) -> None:
    """Raises Conflict when a controller is at work in the state folder."""
    if is_live(listen_address(home.controller, "controller")):
        hint = "fleetctl submit FILE --watch hands it a job; --state DIR keeps two apart"
        raise Conflict(f"a controller is at work in {home.controller}", hint)


def local_agent(place: Here) -> LocalAgent:
    """The agent of this machine, not yet started. Raises Conflict when a controller is at work in the state folder."""
    refuse_a_second(place.home)
    return LocalAgent(AgentPlace(place.home.agent, place.host_name, place.labels))


@asynccontextmanager
async def machine(agent: LocalAgent, place: Here, say: Callable[[str], None]) -> AsyncIterator[Working]:
    """Controller and agent at work while inside. The agent outlives the controller's last fetch of files and is ended last."""
    log_to_file(place.home)
    try:
        async with working(place.home.controller, [agent.place.address], doors=place.doors) as at_work:
            await agent.start()
            await at_work.fleet.expect_agents()
            async with asyncio.TaskGroup() as tasks:
                keeper = tasks.create_task(agent.keep_alive(say))
                yield at_work
                keeper.cancel()
    except BaseExceptionGroup as group:
        raise _first_error(group) from group
    finally:
        left = await agent.stop()
        if left:
            say(left)


def log_to_file(home: Places) -> None:
    """What the controller's parts log is for later: on the terminal it would break the display."""
    try:
        home.controller.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = logging.FileHandler(home.controller_log, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot use the state folder {home.state}: {error.strerror}", "choose another by --state DIR") from error
    logging.raiseExceptions = False  # a log that cannot be written, on a full disk, must not fill the terminal instead
    file.setFormatter(PlainFormatter(LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[file], force=True)


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What the user is to see of a group: its first FleetError, else its first error."""
    errors = _flat(group)
    return next((error for error in errors if isinstance(error, FleetError)), errors[0])


def _flat(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _flat(part)]
    return [error]
