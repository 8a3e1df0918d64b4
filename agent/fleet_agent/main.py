"""Owns the start and the stop of `fleet-agent`: reads its flags, builds the parts in order, ends
them in reverse.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fleet_agent.app.malloc_settings import limit_malloc_arenas
from fleet_protos import __version__
from fleet_protos.errors import ConfigError, ExitCode, FleetError
from fleet_protos.escape import escape_unprintable, log_to_stderr

if TYPE_CHECKING:  # it takes a while to import, and `check` and `pending` need none of it
    from fleet_agent.trials.agent import Agent

log = logging.getLogger(__name__)

_LINGER_CHECK_S = 1.0


def build_parser() -> argparse.ArgumentParser:
    """The flags of `fleet-agent`."""
    parse = argparse.ArgumentParser(
        prog="fleet-agent",
        description="The daemon of one host: launches servers, proves, measures, journals.",
    )
    parse.add_argument("--version", action="version", version=f"fleet-agent {__version__}")
    parse.add_argument(
        "--config",
        type=Path,
        default=None,
        metavar="FILE",
        help="agent.toml; what it says, the options here override",
    )
    parse.add_argument(
        "--state", type=Path, default=None, help="folder of its journal and artifacts"
    )
    parse.add_argument(
        "--listen",
        default="",
        help="unix:PATH or ADDRESS:PORT (default: a socket in the state folder)",
    )
    parse.add_argument(
        "--host-name", default="", help="name of this host in jobs and results (default: its own)"
    )
    parse.add_argument(
        "--gpus",
        type=int,
        default=None,
        help="GPUs that trials may use (default: all that the driver shows)",
    )
    parse.add_argument(
        "--simulated-gpus",
        type=int,
        default=None,
        help="GPUs of simulated servers (default: 8; 0 with --config)",
    )
    parse.add_argument(
        "--recorded-gpus",
        type=Path,
        default=None,
        metavar="FILE",
        help="take the GPUs from this JSON, not from the driver",
    )
    parse.add_argument(
        "--memory-back",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="time for GPU memory to be free (default: 30)",
    )
    parse.add_argument(
        "--label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a label that jobs select hosts by",
    )
    parse.add_argument(
        "--linger",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="end after so long without trial and controller",
    )
    text = "files of ended trials that stay here though the controller has them (default: 1024)"
    parse.add_argument("--keep-files", type=int, default=1024, metavar="MIB", help=text)
    parse.add_argument(
        "--metrics", default="", metavar="ADDRESS:PORT", help="Prometheus endpoint (default: none)"
    )
    parse.add_argument("--metrics-port", type=int, default=0, help="as --metrics 127.0.0.1:PORT")
    return parse


def main() -> int:
    """Run until SIGTERM or SIGINT, or `check` the host. Returns a process exit code; no traceback
    for a user's mistake.
    """
    if sys.argv[1:2] == ["check"]:
        return _run_check_command(sys.argv[2:])
    if sys.argv[1:2] == ["pending"]:
        return _run_pending_command(sys.argv[2:])
    options = build_parser().parse_args()
    limit_malloc_arenas()
    log_to_stderr()
    os.environ.setdefault(
        "GRPC_VERBOSITY", "NONE"
    )  # what it says of a broken line, the log says in words
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
    except OSError as error:  # its reader has gone, or the disk is full
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # or Python tries again at its end
        unwritable = ConfigError(f"the findings cannot be written: {error.strerror}")
        return ExitCode.DONE if isinstance(error, BrokenPipeError) else _print_error(unwritable)


def _run_pending_command(words: list[str]) -> int:
    """For a deploy: what would be lost if the agent ended now, or its state went."""
    from fleet_agent.app.pending_command import read_pending

    parse = argparse.ArgumentParser(
        prog="fleet-agent pending",
        description="Print what the journal still holds for the controller.",
    )
    parse.add_argument("--state", type=Path, required=True, help="the agent's state folder")
    try:
        print(json.dumps(read_pending(parse.parse_args(words).state)))  # noqa: T201 - its result
    except FleetError as error:
        return _print_error(error)
    return ExitCode.DONE


def _print_error(error: FleetError) -> int:
    text = f"fleet-agent: {error.message}" + (f"\n  {error.hint}" if error.hint else "")
    print(escape_unprintable(text), file=sys.stderr)  # noqa: T201 - its way to tell
    return error.exit_code


def _require_agent_extra() -> None:
    """Raises ConfigError for what only the load needs, before a server is launched that nothing
    could load.
    """
    missing = next(
        (module for module in ("ray", "pyarrow", "uvloop") if find_spec(module) is None), None
    )
    if missing:
        raise ConfigError(f"this installation lacks {missing}", "install benchfleet[agent]")


async def _serve(options: argparse.Namespace) -> None:
    try:
        await _run_agent(options)
    except* FleetError as failed:  # of the group or of the making of its parts
        raise failed.exceptions[0] from None


async def _run_agent(options: argparse.Namespace) -> None:
    from fleet_agent.app.bootstrap import build_agent
    from fleet_agent.app.config import resolve_config
    from fleet_agent.app.systemd_notify import notify_ready

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
            notify_ready()
            if options.linger > 0:
                tasks.create_task(_stop_when_idle(parts.agent, options.linger, stopping))
            await working
            if serving is not None:  # till the end: the controller is to hear how the trials ended
                serving.cancel()
    finally:
        await parts.server.stop(grace=1.0)
        parts.journal.close()
    log.info("stopped")


async def _stop_when_idle(agent: Agent, linger_s: float, stopping: asyncio.Event) -> None:
    """A local agent whose controller was killed ends its trials, waits for another controller, then
    goes.
    """
    while not stopping.is_set():
        await asyncio.sleep(_LINGER_CHECK_S)
        lonely_s = time.monotonic() - agent.quiet_since_s
        if not agent.watchers and not agent.active and lonely_s > linger_s:
            log.info("no controller and no trial for %.0f s", lonely_s)
            stopping.set()


if __name__ == "__main__":
    sys.exit(main())
