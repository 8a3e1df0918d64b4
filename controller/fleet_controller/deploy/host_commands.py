"""Defines the commands that a deploy may run on a host, as values that can be printed, sent and
tested.

`remote/installer.py` reads each command as one frame. The arguments of a program are a list, never
a shell string.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class FileOwnership:
    """The mode and owner of a file or folder.

    An empty `owner` means the user who deploys. If `is_owner` is False, root owns the file, and the
    Unix group of `owner` has the group's rights.
    """

    mode: int = 0o755
    owner: str = ""
    is_owner: bool = True

    def frame(self) -> dict[str, Any]:
        """Return the keys that set mode and owner in a frame for the installer."""
        return {"mode": self.mode, "owner": self.owner, "owned": self.is_owner}

    def __str__(self) -> str:
        named = f" {self.owner if self.is_owner else f'root:{self.owner}'}" if self.owner else ""
        return f"{self.mode:04o}{named}"


@dataclass(frozen=True, slots=True)
class MakeFolder:
    """Create a folder unless it exists.

    `agents` are the names of what an agent creates in this folder. Undeploy removes that too.
    """

    path: str
    ownership: FileOwnership = FileOwnership()
    agents: tuple[str, ...] = ()

    def frame(self) -> dict[str, Any]:
        """Return this command as a frame for the installer."""
        return {"op": "folder", "path": self.path, "agents": self.agents, **self.ownership.frame()}

    def __str__(self) -> str:
        return f"make folder {self.path} ({self.ownership})"


@dataclass(frozen=True, slots=True)
class PutFile:
    """Write a small file atomically. The content of a `secret` file is never shown."""

    path: str
    content: bytes = field(repr=False)
    ownership: FileOwnership = FileOwnership(0o644)
    secret: bool = False

    def frame(self) -> dict[str, Any]:
        """Return this command as a frame for the installer. The file's content is sent after the
        frame.
        """
        digest = hashlib.sha256(self.content).hexdigest()
        return {
            "op": "put",
            "path": self.path,
            "size": len(self.content),
            "sha256": digest,
            **self.ownership.frame(),
        }

    def __str__(self) -> str:
        return f"write {self.path} ({self.ownership})"


@dataclass(frozen=True, slots=True)
class SendWheel:
    """Copy a wheel or a Python, check its digest and unpack it: a wheel below `wheels/`, a Python
    below `pythons/`.
    """

    name: str
    source: Path
    size: int
    sha256: str
    op: str = "wheel"  # or `python`, a relocatable interpreter in a tar file

    def frame(self) -> dict[str, Any]:
        """Return this command as a frame for the installer. The file's content is sent after the
        frame.
        """
        return {"op": self.op, "name": self.name, "size": self.size, "sha256": self.sha256}

    def __str__(self) -> str:
        digest, megabytes = self.sha256[:12], self.size / 1e6
        return (
            f"copy {self.source.name} ({megabytes:.1f} MB), check its digest sha256:{digest}…,"
            f" unpack it into {self.op}s/{self.name}"
        )


@dataclass(frozen=True, slots=True)
class MakeVersion:
    """Make a folder below `versions/` from files (name, content, mode) and links (name, target)."""

    name: str
    files: tuple[tuple[str, str, int], ...]
    links: tuple[tuple[str, str], ...]

    def frame(self) -> dict[str, Any]:
        """Return this command as a frame for the installer."""
        return {"op": "version", "name": self.name, "files": self.files, "links": self.links}

    def __str__(self) -> str:
        file_count = len(self.files)
        return f"make versions/{self.name} ({file_count} small files)"


@dataclass(frozen=True, slots=True)
class RequireIdle:
    """Stop the deploy if the agent's journal has trials that are not over. This happens before the
    running version is touched.
    """

    argv: tuple[str, ...]
    timeout_s: float = 20.0

    def frame(self) -> dict[str, Any]:
        """Return this command as a frame for the installer."""
        return {"op": "run", "argv": self.argv, "timeout_s": self.timeout_s}

    def __str__(self) -> str:
        return f"stop if a trial is running: {shlex.join(self.argv)}"


@dataclass(frozen=True, slots=True)
class SaveForRollback:
    """Save the files and links that a switch to another version replaces, so that they can be
    restored.
    """

    paths: tuple[str, ...]

    def frame(self) -> dict[str, Any]:
        """Return this command as a frame for the installer."""
        return {"op": "remember", "paths": self.paths}

    def __str__(self) -> str:
        return f"save for a rollback: {', '.join(self.paths)}"


@dataclass(frozen=True, slots=True)
class SwitchLink:
    """Point a symbolic link at another target, atomically."""

    path: str
    to: str

    def frame(self) -> dict[str, Any]:
        """Return this command as a frame for the installer."""
        return {"op": "link", "path": self.path, "to": self.to}

    def __str__(self) -> str:
        return f"switch {self.path} -> {self.to}"


@dataclass(frozen=True, slots=True)
class RunProgram:
    """Run a program.

    `undo` is the program that undeploy runs to reverse this program. `hint` says what to do when
    this program fails. `restarts` marks the program that starts the new agent: its failure leads to
    a rollback instead of an error.
    """

    argv: tuple[str, ...]
    undo: tuple[str, ...] = ()
    hint: str = ""
    restarts: bool = False
    timeout_s: float = 60.0

    def frame(self) -> dict[str, Any]:
        """Return this command as a frame for the installer."""
        return {
            "op": "run",
            "argv": self.argv,
            "undo": self.undo,
            "restarts": self.restarts,
            "timeout_s": self.timeout_s,
        }

    def __str__(self) -> str:
        return f"run {shlex.join(self.argv)}"


@dataclass(frozen=True, slots=True)
class CheckHealth:
    """Check over gRPC that the right agent answers. Roll back if it does not."""

    host: str
    version: str

    def frame(self) -> dict[str, Any]:
        """Return this command as a frame that is only printed: the controller runs it, not the
        installer.
        """
        return {"op": "health", "host": self.host, "version": self.version}

    def __str__(self) -> str:
        return (
            f"wait until the agent answers over gRPC as host {self.host}, version {self.version};"
            " otherwise go back to the previous version"
        )


@dataclass(frozen=True, slots=True)
class DropRollback:
    """Remove what was saved for a rollback, and the versions, wheels and Pythons that neither
    `keep` names nor the previous version uses.
    """

    keep: tuple[str, ...]

    def frame(self) -> dict[str, Any]:
        """Return this command as a frame for the installer."""
        return {"op": "forget", "keep": self.keep}

    def __str__(self) -> str:
        return "remove versions and wheels that neither this version nor the previous one uses"


@dataclass(frozen=True, slots=True)
class RemoveAll:
    """Remove everything that the list of the installation names, then the list.

    `logs` are the names of files that the agent's keeper creates in the root.
    """

    root: str
    logs: tuple[str, ...]

    def frame(self) -> dict[str, Any]:
        """Return this command as a frame for the installer."""
        return {"op": "remove", "logs": self.logs}

    def __str__(self) -> str:
        return f"remove everything listed in {self.root}/made.jsonl, then that list"


HostCommand = (
    MakeFolder
    | PutFile
    | SendWheel
    | MakeVersion
    | RequireIdle
    | SaveForRollback
    | SwitchLink
    | RunProgram
    | CheckHealth
    | DropRollback
    | RemoveAll
)


def command_json(command: HostCommand) -> Mapping[str, Any]:
    """Return a command as `--json` prints it: its text, and its frame without file contents."""
    return {"text": str(command), **command.frame()}
