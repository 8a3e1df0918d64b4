"""Owns a user's desk for tests of deploy: a fleet file, a trust folder, `fleetctl` as a process.
Decides nothing that fleetctl does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.hosts import LabHost

TOGETHER_S = 420.0
FOREIGN = ("BENCHFLEET_FLEET", "BENCHFLEET_STATE", "BENCHFLEET_TRUST", "SSH_AUTH_SOCK", "DISPLAY")


@dataclass(slots=True)
class OperatorMachine:
    """One user's folder. `entries`: what the fleet file says of each host beyond how it is logged
    in to.
    """

    folder: Path
    hosts: dict[str, tuple[LabHost, str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        done = self.fleetctl("trust", "init")
        assert done.returncode == 0, done.stderr

    def knows(self, host: LabHost, user: str = "bench", more: str = "") -> None:
        """Write the host into the fleet file; `more` is YAML of one line, such as `install: {mode:
        user}`.
        """
        self.hosts[host.name] = (host, user, more)
        self.write()

    def write(self) -> None:
        """The fleet file as the entries say."""
        lines = ["apiVersion: benchfleet/v1", "kind: Fleet", "hosts:"]
        for name, (host, user, more) in self.hosts.items():
            ssh = host.ssh(user=user)
            known = "" if "known_hosts" in more else f", known_hosts: {ssh.known_hosts}"
            login = f"user: {user}, identity: {ssh.identity}{known}"
            lines.append(
                f"  - {{name: {name}, address: {host.address}, simulated_gpus: 8, {login}{', ' if more else ''}{more}}}"
            )
        (self.folder / "fleet.yaml").write_text("\n".join(lines) + "\n")

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """What its programs see."""
        kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        return {
            **kept,
            "BENCHFLEET_STATE": str(self.folder / "state"),
            "HOME": str(self.folder),
            **self._cache(),
            **(more or {}),
        }

    def _cache(self) -> dict[str, str]:
        """Wheels are fetched once a machine, not once a test."""
        return {
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", "")
            or str(Path("~/.cache").expanduser())
        }

    def fleetctl(
        self, *words: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A finished command."""
        argv = [sys.executable, "-m", "fleet_controller.cli.main", *words]
        return subprocess.run(
            argv, cwd=self.folder, env=self.environment(env), capture_output=True, text=True, timeout=TOGETHER_S, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def results(
        self, *words: str, env: Mapping[str, str] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Host → what a deploy says of it."""
        done = self.fleetctl(*words, "--json", env=env)
        assert done.stdout, done.stderr
        return {told["host"]: told for told in json.loads(done.stdout)["hosts"]}

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        """A command under way, its output in the folder's begun.log; to be killed or waited for."""
        argv = [sys.executable, "-m", "fleet_controller.cli.main", *words]
        with (self.folder / "begun.log").open("wb") as log:
            return subprocess.Popen(
                argv,
                cwd=self.folder,
                env=self.environment(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )


def files_of(host: LabHost) -> set[str]:
    """Every path on the host's disk that the host itself made or changed, but for what any program
    leaves: logs and temporary files.

    A folder that was there from the first is none of its making, though its time of change is.
    """
    top = host.disk.folder
    ignored = (
        "upper/var/log",
        "upper/var/tmp",
        "upper/run",
        "upper/tmp",
        "own",
        "work",
        "upper/var/lib/systemd/timers",
        "upper/var/cache",
    )
    found = {
        name: path
        for path in top.rglob("*")
        if not (name := str(path.relative_to(top))).startswith(ignored)
    }
    return {
        name
        for name, path in found.items()
        if not (path.is_dir() and Path("/", name.removeprefix("upper/")).is_dir())
    }


def agents_of(host: LabHost) -> list[int]:
    """Outer process ids of the host's agents."""
    return [
        process.outer_pid
        for process in host.processes()
        if any(word.endswith("/bin/fleet-agent") for word in process.argv[:2])
    ]
