"""Starts and stops `fleet-controller`, the controller as a daemon."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from fleet_controller.hosts.targets import FleetTargets
from fleet_protos import __version__
from fleet_protos.errors import ExitCode, FleetError
from fleet_protos.escape import escape_unprintable, log_to_stderr

log = logging.getLogger(__name__)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `fleet-controller`."""
    parse = argparse.ArgumentParser(
        prog="fleet-controller", description="Schedules jobs over agents and keeps their results."
    )
    parse.add_argument("--version", action="version", version=f"fleet-controller {__version__}")
    parse.add_argument(
        "--state",
        type=Path,
        required=True,
        help="folder for artifacts, socket and (by default) store",
    )
    parse.add_argument(
        "--store",
        default="",
        help="store: a file or a database URL (default: store.sqlite3 in the state folder)",
    )
    parse.add_argument(
        "--agent",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="unix:PATH or 127.0.0.1:PORT of an agent; may be repeated",
    )
    text = (
        "fleet file with the hosts (default without --agent: $BENCHFLEET_FLEET, else "
        "./fleet.yaml); it is read again when it changes, and at SIGHUP"
    )
    parse.add_argument("--fleet", default=None, metavar="FILE", help=text)
    text = (
        "how long a host may be away before the attempts that wait for it are closed "
        "(default: give_up_after of the fleet file, else 3600)"
    )
    parse.add_argument("--give-up-after", type=float, default=None, metavar="SECONDS", help=text)
    parse.add_argument(
        "--listen",
        default="",
        help="unix:PATH or ADDRESS:PORT for fleetctl (default: a socket in the state folder)",
    )
    parse.add_argument(
        "--trust",
        default="",
        metavar="DIR",
        help="trust folder (default: $BENCHFLEET_TRUST, else `trust` next to the state folder)",
    )
    parse.add_argument(
        "--metrics", default="", metavar="ADDRESS:PORT", help="Prometheus endpoint (default: none)"
    )
    parse.add_argument("--metrics-port", type=int, default=0, help="as --metrics 127.0.0.1:PORT")
    return parse


def main() -> int:
    """Run until SIGTERM or SIGINT and return the exit code. A mistake of the user is printed
    without a traceback.
    """
    options = build_parser().parse_args()
    log_to_stderr()
    # gRPC's own lines about lost connections repeat our log, without the name of the host.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        asyncio.run(_serve(options))
    except FleetError as error:
        findings = getattr(error, "findings", ())  # all findings of a fleet file, not only one
        output = "\n".join(map(str, findings)) or f"fleet-controller: {error.message}" + (
            f"\n  {error.hint}" if error.hint else ""
        )
        print(escape_unprintable(output), file=sys.stderr)  # noqa: T201 - the output of the program
        return error.exit_code
    return ExitCode.DONE


async def _serve(options: argparse.Namespace) -> None:
    from fleet_controller.app.bootstrap import endpoints_from_options, start_controller

    targets = _load_targets(options)
    if options.give_up_after is not None:
        targets = replace(targets, give_up_after_s=options.give_up_after)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    state: Path = options.state.absolute()
    async with start_controller(
        state, targets, store=options.store, endpoints=endpoints_from_options(options, state)
    ) as running:
        if running.fleet_file is not None:
            loop.add_signal_handler(signal.SIGHUP, running.fleet_file.read_now)
        log.info("listening on %s with %d agents", running.address, len(targets.agents))
        await stopping.wait()
    log.info("stopped")


def _load_targets(options: argparse.Namespace) -> FleetTargets:
    from fleet_controller.fleet_file.find_fleet_file import find_fleet_file
    from fleet_controller.hosts.target_access import fleet_targets
    from fleet_controller.pki.trust_path import trust_folder_path

    path = find_fleet_file(options.fleet) if options.fleet or not options.agent else None
    trust = trust_folder_path(options.trust, options.state.absolute())
    if path is None:
        return fleet_targets(options.agent, None, trust)
    from fleet_controller.fleet_file.fleet_loader import load_fleet_file

    loaded = load_fleet_file(path)
    for finding in loaded.findings:
        log.warning("%s", finding)
    return fleet_targets(options.agent, loaded.inventory, trust)


if __name__ == "__main__":
    sys.exit(main())
