"""Defines what is wanted on a host: the agent's interpreter, its trust files and its wheels."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet_controller.core.inventory import FleetHost
from fleet_controller.deploy.host_facts import HostPython, ProbeFacts
from fleet_controller.deploy.install_location import InstallLocation
from fleet_controller.deploy.wheel_bundle import Bundle, BundleFile
from fleet_protos.errors import ConfigError

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)


@dataclass(frozen=True, slots=True)
class AgentInterpreter:
    """The Python that an agent runs on: the host's own Python at `path`, or the `bundled` Python,
    which a deploy sends.
    """

    version: tuple[int, int, int]
    path: str = ""
    bundled: BundleFile | None = None

    def executable(self, root: str) -> str:
        """Return the interpreter's path on the host, for an installation at `root`."""
        return f"{root}/pythons/{self.bundled.name}/bin/python3" if self.bundled else self.path


@dataclass(frozen=True, slots=True)
class TrustFiles:
    """The contents of an agent's TLS files in PEM, and its list of revoked certificates.

    `certificate` and `key` are None when the installed pair stays. No other host gets this key.
    """

    authorities: bytes
    revoked: bytes
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class WantedInstall:
    """The wanted state of one host.

    `keeper` is the text of remote/keeper.py, which restarts an agent where there is no systemd.
    `force` restarts the agent even if trials are running.
    """

    host: FleetHost
    location: InstallLocation
    bundle: Bundle
    interpreter: AgentInterpreter
    trust_files: TrustFiles
    keeper: str
    force: bool = False


def choose_python(host: FleetHost, facts: ProbeFacts) -> HostPython:
    """Return the interpreter of the host that the agent should run on.

    Pythons outside home folders are preferred, since every user can run them. Raises ConfigError,
    which lists the interpreters found, when none is usable.
    """
    wanted = host.install.python
    usable = [
        one
        for one in facts.pythons
        if one.usable and OLDEST_PYTHON <= one.version[:2] <= NEWEST_PYTHON
    ]
    if wanted != "auto":
        wanted = facts.home + wanted[1:] if wanted.startswith("~/") else wanted
        usable = [one for one in usable if wanted in (one.path, one.named)]
    shared = [one for one in usable if not one.path.startswith(("/root/", "/home/"))]
    if usable:
        return (shared or usable)[0]
    found = (
        ", ".join(f"{one.path} {'.'.join(map(str, one.version))}" for one in facts.pythons)
        or "none"
    )
    problem = (
        "the agent needs Python 3.11 to 3.14, and the host has no usable Python of these versions"
        if wanted == "auto"
        else f"the agent cannot run on {wanted}, which is not a usable Python 3.11 to 3.14"
    )
    raise ConfigError(
        f"host {host.name}: {problem} (found: {found})",
        "set install.python to an interpreter of the host that is not in a virtual environment, or"
        " to `bundled`, which sends a Python to the host",
    )
