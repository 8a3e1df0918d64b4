"""Owns lab hosts for a person: brings them up, says how to reach them, ends them with Ctrl-C or
`make lab-down`. Tests nothing.

Settings are environment variables: HOSTS (3), SYSTEMD=1 (hosts with a systemd), VENV=1 (this
checkout's environment, read-only, in each).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import threading
from collections.abc import Sequence

from tests.lab import remains
from tests.lab.hosts import LabHost
from tests.lab.lab import Lab
from tests.lab.programs import LabTrouble, obstacle

MARK = "by-hand"


def fleet_file(hosts: Sequence[LabHost], user: str = "root") -> str:
    """A fleet file with these hosts, each with simulated GPUs."""
    lines = [
        "apiVersion: benchfleet/v1",
        "kind: Fleet",
        "name: lab",
        f"defaults: {{user: {user}, simulated_gpus: 8}}",
        "hosts:",
    ]
    for host in hosts:
        ssh = host.ssh(user)
        keys = {
            "name": host.name,
            "address": host.address,
            "identity": ssh.identity,
            "known_hosts": ssh.known_hosts,
        }
        lines.append(f"  - {{{', '.join(f'{key}: {value}' for key, value in keys.items())}}}")
    return "\n".join(lines) + "\n"


def up(count: int, systemd: bool, with_venv: bool) -> None:
    """Bring hosts up, print how to reach them, and keep them until this process is told to end."""
    lab = Lab.open()
    try:
        hosts = (
            [lab.systemd_host(with_venv=with_venv) for _ in range(count)]
            if systemd
            else lab.hosts(count, with_venv=with_venv)
        )
        (lab.folder / MARK).touch()
        fleet = lab.folder / "fleet.yaml"
        fleet.write_text(fleet_file(hosts))
        print(
            f"lab: {count} hosts on bridge {lab.network.bridge}, this machine is {lab.address}; logins: root, ops (sudo), bench"
        )
        for host in hosts:
            print(f"{host.name:8} {host.address:15} {shlex.join(host.ssh().argv())}")
        print(
            f"fleet file: {fleet}\nCtrl-C or `make lab-down` ends the hosts and removes them",
            flush=True,
        )
        await_end()
    finally:
        lab.close()


def await_end() -> None:
    """Block until SIGINT or SIGTERM."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()


def down() -> None:
    """End what `up` started anywhere on this machine; labs of tests stay."""
    for folder in [path.parent for path in remains.ROOT.glob(f"*/{MARK}")]:
        owner = remains.owner_of(folder)
        with contextlib.suppress(ProcessLookupError):
            if owner is not None:
                os.kill(owner, signal.SIGTERM)
                print(f"lab: ended the hosts of {folder}")
    with remains.alone():
        remains.remove_ownerless()


def main(words: Sequence[str]) -> int:
    """`up` or `down`; a process exit code."""
    reason = obstacle()
    if reason:
        print(f"lab: {reason}", file=sys.stderr)
        return 3
    try:
        if list(words) == ["down"]:
            down()
        else:
            up(
                int(os.environ.get("HOSTS", "3")),
                bool(int(os.environ.get("SYSTEMD", "0"))),
                bool(int(os.environ.get("VENV", "0"))),
            )
    except LabTrouble as error:
        print(f"lab: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
