"""Runs a controller with a local agent on this machine for as long as a command needs them."""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fleet_controller.app.bootstrap import ControllerEndpoints, RunningController, start_controller
from fleet_controller.app.local_agent import LocalAgent, LocalAgentConfig
from fleet_controller.app.socket_probe import is_listening
from fleet_controller.cli.state_folder import StateFolder, local_host_name, resolve_state_folder
from fleet_protos.errors import ConfigError, Conflict, first_error
from fleet_protos.escape import LOG_FORMAT, EscapingFormatter
from fleet_transport.sockets import listen_address


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """This machine as the only host of a command. `metrics_port` 0 means no Prometheus endpoint."""

    state_folder: StateFolder
    host_name: str
    labels: tuple[str, ...] = ()
    metrics_port: int = 0

    @property
    def endpoints(self) -> ControllerEndpoints:
        """The endpoints of the controller: its Unix socket, and a Prometheus endpoint if the user
        asked for it.
        """
        return ControllerEndpoints(
            metrics=("127.0.0.1", self.metrics_port) if self.metrics_port else None
        )


def local_machine(arguments: argparse.Namespace) -> LocalMachine:
    """Read the options of `run`, `resume` and `up`."""
    return LocalMachine(
        resolve_state_folder(arguments.state),
        arguments.host_name or local_host_name(),
        tuple(arguments.label),
        arguments.metrics_port,
    )


def require_no_other_controller(state_folder: StateFolder) -> None:
    """Raise Conflict if a controller is running in the state folder."""
    if is_listening(listen_address(state_folder.controller, "controller")):
        raise Conflict(
            f"a controller is already running in {state_folder.controller}",
            "submit the job to it with `fleetctl submit FILE --watch`, or use another state folder"
            " with --state DIR",
        )


def local_agent(this_machine: LocalMachine) -> LocalAgent:
    """Return the agent of this machine. It is not started yet.

    Raises Conflict if a controller is running in the state folder.
    """
    require_no_other_controller(this_machine.state_folder)
    return LocalAgent(
        LocalAgentConfig(
            this_machine.state_folder.agent, this_machine.host_name, this_machine.labels
        )
    )


@asynccontextmanager
async def run_local_controller(
    agent: LocalAgent,
    this_machine: LocalMachine,
    print_line: Callable[[str], None],
    only_job: str | None = None,
) -> AsyncIterator[RunningController]:
    """Run the controller and the agent while inside. `only_job`: see `FleetController.load`.

    The agent stops after the controller, so that the controller can still fetch its files. Of an
    exception group, the first error is raised.
    """
    log_to_file(this_machine.state_folder)
    try:
        async with start_controller(
            this_machine.state_folder.controller,
            [agent.config.address],
            endpoints=this_machine.endpoints,
            only_job=only_job,
        ) as running:
            await agent.start()
            await running.fleet.wait_for_agents()
            async with asyncio.TaskGroup() as tasks:
                restart_task = tasks.create_task(agent.keep_alive(print_line))
                yield running
                restart_task.cancel()
    except BaseExceptionGroup as group:
        raise first_error(group) from group
    finally:
        left = await agent.stop()
        if left:
            print_line(left)


def log_to_file(state_folder: StateFolder) -> None:
    """Send the controller's log to a file, because it would break the display on the terminal.

    Raises ConfigError when the state folder cannot be written.
    """
    try:
        state_folder.controller.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = logging.FileHandler(state_folder.controller_log, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"cannot use the state folder {state_folder.path}: {error.strerror}",
            "choose another state folder with --state DIR",
        ) from error
    logging.raiseExceptions = False  # on a full disk, failed writes must not fill the terminal
    file.setFormatter(EscapingFormatter(LOG_FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[file], force=True)
