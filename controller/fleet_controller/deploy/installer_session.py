"""Runs the installer on a host over SSH, with sudo if needed, and sends it commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from types import TracebackType
from typing import Any

from fleet_controller.deploy.host_commands import HostCommand, PutFile, SendWheel
from fleet_controller.deploy.install_location import InstallLocation
from fleet_controller.ssh.ssh_connection import SshConnection
from fleet_protos.errors import Bug, Conflict, FleetError

LOCK_WAIT_S = 20.0
_CHUNK_BYTES = 1 << 20
_PACKAGE = "fleet_controller.deploy.remote"
# In an order in which each module comes after those that it imports
_MODULES = ("atomic_files", "file_trees", "made_list", "programs", "rollback", "installer")
_LOADER = """\
import json, sys, types
source = sys.stdin.buffer
for name, text in json.loads(source.read(int(source.readline())).decode()):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
module.main()
"""


class DeployFailed(FleetError):
    """A command failed on a host, and the user must fix the cause. The message has the command's
    error.
    """


def remote_source(name: str) -> str:
    """Return the source of a module in the folder `remote`."""
    return (files(_PACKAGE) / f"{name}.py").read_text(encoding="utf-8")


# (the program that Python runs on the host, what is sent to it first after a line with its length)
INSTALLER = (
    _LOADER,
    json.dumps([(f"{_PACKAGE}.{name}", remote_source(name)) for name in _MODULES]).encode(),
)


class InstallerSession:
    """One SSH session of the installer. It holds the installation's lock until it is closed or the
    connection ends.
    """

    def __init__(
        self, connection: SshConnection, host: str, location: InstallLocation, python: str
    ) -> None:
        self._host = host
        sudo = ["sudo", "-n", "--"] if location.by_sudo else []
        starter, sources = INSTALLER
        self._pipe = connection.start([*sudo, python, "-I", "-c", starter])
        self._pipe.send(b"%d\n%s" % (len(sources), sources))
        self._request(
            {"op": "begin", "root": location.root, "mode": location.mode, "wait_s": LOCK_WAIT_S},
            f"open {location.root}",
        )

    def execute(self, command: HostCommand) -> Mapping[str, Any]:
        """Run a command on the host and return the installer's answer.

        Raises DeployFailed if the command failed. Raises Conflict if the installer refused it.
        Raises HostUnreachable if the connection ended.
        """
        frame = command.frame()
        self._pipe.send(json.dumps(frame).encode() + b"\n")
        if isinstance(command, PutFile):
            self._pipe.send(command.content)
        elif isinstance(command, SendWheel):
            self._send_file(command)
        return self._read_answer(str(command))

    def restore(self) -> str:
        """Put back what a switch to another version replaced.

        Return the link target of the restored version, or an empty text if there is no earlier
        version.
        """
        current: str = self._request({"op": "restore"}, "go back to the previous version")[
            "current"
        ]
        return current

    def close(self) -> None:
        """End the session, which releases the lock."""
        self._pipe.close()

    def __enter__(self) -> InstallerSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _send_file(self, command: SendWheel) -> None:
        with command.source.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                self._pipe.send(chunk)

    def _request(self, frame: Mapping[str, Any], what: str) -> Mapping[str, Any]:
        self._pipe.send(json.dumps(frame).encode() + b"\n")
        return self._read_answer(what)

    def _read_answer(self, what: str) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = json.loads(self._pipe.read_line())
        if answer["ok"]:
            return answer
        error, kind = answer["error"], answer["kind"]
        if kind == "bug":
            raise Bug(f"host {self._host}: {what}: {error}")
        if kind == "refused":
            raise Conflict(f"host {self._host}: {error}")
        hint = (
            "free some space on the host and run the command again: it continues where it stopped"
            if kind == "full"
            else "fix this on the host and run the command again"
        )
        raise DeployFailed(f"host {self._host}: could not {what}: {error}", hint)
