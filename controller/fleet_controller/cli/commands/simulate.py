"""Implements `fleetctl simulate`: runs one simulated server in the foreground, for any client."""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import fields
from importlib.util import find_spec

from fleet_controller.cli.terminal.console import Console
from fleet_protos.errors import ConfigError, Conflict, ExitCode
from fleet_protos.trial_types import Simulation

_PACKAGE = "fleet_simulator"
_POLL_S = 0.05
_STOP_TIMEOUT_S = 5.0
_ANY_ADDRESS = ("0.0.0.0", "::")


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the server until it ends or the user interrupts it.

    Raises ConfigError if the simulator is not installed or --simulation is invalid. Raises Conflict
    if the port is taken.
    """
    if find_spec(_PACKAGE) is None:
        raise ConfigError("the simulator is not installed", "install benchfleet[simulator]")
    _check_knobs(arguments.simulation)
    _check_port(arguments.host, arguments.port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends it like Ctrl-C
    with subprocess.Popen(_server_argv(arguments)) as server:
        try:
            if _wait_ready(server, url := _url(arguments)):
                console.print_lines(
                    [
                        f"simulated server ready at {url} (its times come from a model, not from a"
                        " GPU); Ctrl-C stops it"
                    ]
                )
            code = server.wait()
        except KeyboardInterrupt:
            _stop(server)
            return ExitCode.DONE
    return code if code in (ExitCode.DONE, ExitCode.USAGE_ERROR) else ExitCode.FAILED


def _check_knobs(text: str) -> None:
    try:
        knobs = json.loads(text)
    except ValueError:
        knobs = None
    if not isinstance(knobs, dict):
        raise ConfigError(
            f"--simulation is not a JSON object: {text[:60]}",
            """write for example --simulation '{"time_scale": 20}'""",
        )
    known = [field.name for field in fields(Simulation)]
    if unknown := [name for name in knobs if name not in known]:
        names = ", ".join(known)
        raise ConfigError(
            f"--simulation has no knob `{unknown[0][:60]}`", f"the knobs are: {names}"
        )


def _check_port(host: str, port: int) -> None:
    """Raise Conflict if the port is taken, because another server there would look like ours."""
    try:
        socket.create_server((host, port), family=_family(host)).close()
    except (OSError, OverflowError) as error:
        raise Conflict(
            f"cannot listen at {host} port {port}: {error}", "choose another --port or --host"
        ) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _server_argv(arguments: argparse.Namespace) -> list[str]:
    return [
        *(sys.executable, "-m", f"{_PACKAGE}.server"),
        *arguments.server_arguments,
        *("--model-path", arguments.model_path),
        *("--host", arguments.host, "--port", str(arguments.port)),
        *("--simulation", arguments.simulation),
    ]


def _url(arguments: argparse.Namespace) -> str:
    host = "127.0.0.1" if arguments.host in _ANY_ADDRESS else arguments.host
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{arguments.port}"


def _wait_ready(server: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until the server answers /health with 200. Return False if it has ended before."""
    while server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5.0):
                return server.poll() is None
        except OSError:  # not listening yet, or 503 while it loads
            time.sleep(_POLL_S)
    return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Ask the server to end. Kill it if it has not ended after a few seconds."""
    server.terminate()
    try:
        server.wait(_STOP_TIMEOUT_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        server.kill()
        server.wait()
