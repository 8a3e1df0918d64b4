"""Owns two real agents on this machine, as two hosts of one job; ends them, and tells their logs
when one ended badly.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from fleet_transport.sockets import listen_address

HOSTS = ("host-a", "host-b")


@contextmanager
def two_hosts(root: Path, first_secrets: str = "") -> Iterator[list[str]]:
    """The addresses of both; only the first has these secrets."""
    with agent(root / "a", HOSTS[0], first_secrets) as first, agent(root / "b", HOSTS[1]) as second:
        yield [first, second]


@contextmanager
def agent(state: Path, host: str, secrets: str = "") -> Iterator[str]:
    """The address of one agent that calls itself `host`."""
    state.mkdir()
    (state / "secrets").write_text(secrets)
    (state / "secrets").chmod(0o600)
    env = {**os.environ, "BENCHFLEET_SECRETS": str(state / "secrets")}
    argv = [
        sys.executable,
        "-m",
        "fleet_agent.main",
        "--state",
        str(state),
        "--host-name",
        host,
        "--gpus",
        "0",
    ]
    with (state / "log").open("ab") as log:
        process = subprocess.Popen(argv, stderr=log, start_new_session=True, env=env)
    address = listen_address(state, "agent")
    try:
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(timeout=30)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=90)
    assert code == 0, (state / "log").read_text()
