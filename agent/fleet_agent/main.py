"""Starts and stops the program `fleet-agent`, and runs its commands `check` and `pending`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fleet_agent.app.malloc_settings import limit_malloc_arenas
from fleet_protos import __version__
from fleet_protos.errors import ConfigError, ExitCode, FleetError, first_error
from fleet_protos.escape import escape_unprintable, log_to_stderr

if TYPE_CHECKING:  # slow to import, and `check` and `pending` do not need it
    from fleet_agent.trials.agent import Agent

log = logging.getLogger(__name__)

_LINGER_CHECK_S = 1.0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `fleet-agent`'s options."""
    parser = argparse.ArgumentParser(
        prog="fleet-agent",
        description="The daemon of one host. It launches servers, proves their configuration, "
        "measures them and keeps a journal.",
    )
    option = parser.add_argument
    option("--version", action="version", version=f"fleet-agent {__version__}")
    option(
        "--config",
        type=Path,
        metavar="FILE",
        help="the configuration file agent.toml; other options override its values",
    )
    option("--state", type=Path, help="folder for the journal and artifacts")
    option(
        "--listen",
        default="",
        help="unix:PATH or ADDRESS:PORT (default: a socket in the state folder)",
    )
    option(
        "--host-name",
        default="",
        help="name of this host in jobs and results (default: the system's host name)",
    )
    _add_gpu_options(parser)
    option(
        "--label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a label by which jobs select hosts; may be repeated",
    )
    option(
        "--linger",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="stop after SECONDS with neither a trial nor a controller (default: never)",
    )
    option(
        "--keep-files",
        type=int,
        default=1024,
        metavar="MIB",
        help="keep at most MIB of files that the controller has fetched already (default: 1024)",
    )
    option(
        "--metrics", default="", metavar="ADDRESS:PORT", help="Prometheus endpoint (default: none)"
    )
    option("--metrics-port", type=int, default=0, help="same as --metrics 127.0.0.1:PORT")
    return parser


def _add_gpu_options(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option(
        "--gpus",
        type=int,
        help="number of GPUs that trials may use (default: all GPUs that the driver shows)",
    )
    option(
        "--simulated-gpus",
        type=int,
        help="number of GPUs for simulated servers (default: 8; 0 with --config)",
    )
    option(
        "--recorded-gpus",
        type=Path,
        metavar="FILE",
        help="read the state of the GPUs from this JSON file instead of asking the driver",
    )
    option(
        "--memory-back",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for GPU memory to be free (default: 30)",
    )


def main() -> int:
    """Run the agent until SIGTERM or SIGINT, or run the command `check` or `pending`. Return the
    exit code of the process. A user's mistake prints no traceback.
    """
    if sys.argv[1:2] == ["check"]:
        return _run_check_command(sys.argv[2:])
    if sys.argv[1:2] == ["pending"]:
        return _run_pending_command(sys.argv[2:])
    options = build_parser().parse_args()
    limit_malloc_arenas()
    log_to_stderr()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our own log covers broken connections
    try:
        _require_agent_extra()
        asyncio.run(_serve(options))
    except FleetError as error:
        return _print_error(error)
    return ExitCode.DONE


def _run_check_command(words: list[str]) -> int:
    from fleet_agent.app.check_command import run_check

    try:
        code = run_check(words)
        sys.stdout.flush()
        return code
    except FleetError as error:
        return _print_error(error)
    except OSError as error:  # the reader closed the pipe, or the disk is full
        # otherwise Python tries to write again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        unwritable = ConfigError(f"cannot write the findings: {error.strerror}")
        return ExitCode.DONE if isinstance(error, BrokenPipeError) else _print_error(unwritable)


def _run_pending_command(words: list[str]) -> int:
    """Print what would be lost if the agent's state folder were removed now. `fleetctl deploy` and
    `fleetctl undeploy` run this before they replace or remove an agent.
    """
    from fleet_agent.app.pending_command import read_pending

    parse = argparse.ArgumentParser(
        prog="fleet-agent pending",
        description="Print which trials, events and files the controller does not have yet.",
    )
    parse.add_argument("--state", type=Path, required=True, help="the agent's state folder")
    try:
        print(json.dumps(read_pending(parse.parse_args(words).state)))  # noqa: T201 - its output
    except FleetError as error:
        return _print_error(error)
    return ExitCode.DONE


def _print_error(error: FleetError) -> int:
    text = f"fleet-agent: {error.message}" + (f"\n  {error.hint}" if error.hint else "")
    print(escape_unprintable(text), file=sys.stderr)  # noqa: T201 - its output
    return error.exit_code


def _require_agent_extra() -> None:
    """Raise ConfigError if a package that the load process needs is not installed. Without this
    check, the agent would launch a server before it finds that it cannot measure.
    """
    missing = next(
        (module for module in ("ray", "pyarrow", "uvloop") if find_spec(module) is None), None
    )
    if missing:
        raise ConfigError(f"this installation lacks {missing}", "install benchfleet[agent]")


async def _serve(options: argparse.Namespace) -> None:
    try:
        await _run_agent(options)
    except* FleetError as failed:  # from the task group, or from building the parts
        raise first_error(failed) from None


async def _run_agent(options: argparse.Namespace) -> None:
    from fleet_agent.app.bootstrap import build_agent
    from fleet_agent.app.config import resolve_config

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    config = resolve_config(options)
    parts = await build_agent(config, options.recorded_gpus, options.memory_back)
    try:
        async with asyncio.TaskGroup() as tasks:
            working = tasks.create_task(parts.agent.run(stopping))
            await parts.server.start()
            serving = tasks.create_task(parts.gateway.serve()) if parts.gateway else None
            log.info("listening on %s as host %s", parts.address, parts.host)
            _notify_systemd()
            if options.linger > 0:
                tasks.create_task(_stop_when_idle(parts.agent, options.linger, stopping))
            await working
            if serving is not None:  # serve to the end: the controller must learn how trials ended
                serving.cancel()
    finally:
        await parts.server.stop(grace=1.0)
        parts.journal.close()
    log.info("stopped")


def _notify_systemd() -> None:
    """Send READY=1 to the socket that $NOTIFY_SOCKET names (sd_notify(3)), if the variable is set.
    Unset the variable, so that no child process notifies systemd in the agent's place.
    """
    path = os.environ.pop("NOTIFY_SOCKET", "")
    if not path:
        return
    with (
        suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify,
    ):
        notify.sendto(b"READY=1", "\0" + path[1:] if path.startswith("@") else path)


async def _stop_when_idle(agent: Agent, linger_s: float, stopping: asyncio.Event) -> None:
    """Stop the agent after `linger_s` seconds in which it had neither a trial nor a controller. A
    local agent ends this way when its controller was killed.
    """
    while not stopping.is_set():
        await asyncio.sleep(_LINGER_CHECK_S)
        idle_s = time.monotonic() - agent.idle_since_s
        if not agent.watchers and not agent.active and idle_s > linger_s:
            log.info("stopping: no controller and no trial for %.0f s", idle_s)
            stopping.set()


if __name__ == "__main__":
    sys.exit(main())
