"""Defines the commands that a deploy may run on a host, as values that can be printed, sent and
tested.

Each command is one frame of `remote/installer.py`. The arguments of a program are a list, never a
shell string.
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

    An empty `owner` is the user who deploys. With `is_owner` False, root owns it, and the group of
    `owner` has the group's rights.
    """

    mode: int = 0o755
    owner: str = ""
    is_owner: bool = True

    def frame(self) -> dict[str, Any]:
        """Return the installer's frame."""
        return {"mode": self.mode, "owner": self.owner, "owned": self.is_owner}

    def __str__(self) -> str:
        named = f" {self.owner if self.is_owner else f'root:{self.owner}'}" if self.owner else ""
        return f"{self.mode:04o}{named}"


@dataclass(frozen=True, slots=True)
class MakeFolder:
    """Create a folder unless it exists.

    `agents` are the names that an agent creates in it; undeploy removes them too.
    """

    path: str
    ownership: FileOwnership = FileOwnership()
    agents: tuple[str, ...] = ()

    def frame(self) -> dict[str, Any]:
        """Return the installer's frame."""
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
        """Return the installer's frame; the content follows it."""
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
    """Copy a wheel, check its digest and unpack it below `wheels/`; a Python below `pythons/`."""

    name: str
    source: Path
    size: int
    sha256: str
    op: str = "wheel"  # or `python`, a relocatable interpreter in a tar file

    def frame(self) -> dict[str, Any]:
        """Return the installer's frame; the content of the file follows it."""
        return {"op": self.op, "name": self.name, "size": self.size, "sha256": self.sha256}

    def __str__(self) -> str:
        checked = f"check sha256:{self.sha256[:12]}…, unpack it into {self.op}s/{self.name}"
        return f"copy {self.source.name} ({self.size / 1e6:.1f} MB), {checked}"


@dataclass(frozen=True, slots=True)
class MakeVersion:
    """Make a folder below `versions/` from files (name, content, mode) and links (name, target)."""

    name: str
    files: tuple[tuple[str, str, int], ...]
    links: tuple[tuple[str, str], ...]

    def frame(self) -> dict[str, Any]:
        """Return the installer's frame."""
        return {"op": "version", "name": self.name, "files": self.files, "links": self.links}

    def __str__(self) -> str:
        return f"make versions/{self.name} ({len(self.files)} small files)"


@dataclass(frozen=True, slots=True)
class RequireIdle:
    """Stop the deploy, before anything that runs is touched, if the agent's journal has trials that
    are not over.
    """

    argv: tuple[str, ...]
    timeout_s: float = 20.0

    def frame(self) -> dict[str, Any]:
        """Return the installer's frame."""
        return {"op": "run", "argv": self.argv, "timeout_s": self.timeout_s}

    def __str__(self) -> str:
        return f"stop if a trial is running: {shlex.join(self.argv)}"


@dataclass(frozen=True, slots=True)
class SaveForRollback:
    """Save the files and links that a switch replaces, so that they can be restored."""

    paths: tuple[str, ...]

    def frame(self) -> dict[str, Any]:
        """Return the installer's frame."""
        return {"op": "remember", "paths": self.paths}

    def __str__(self) -> str:
        return f"save for a rollback: {', '.join(self.paths)}"


@dataclass(frozen=True, slots=True)
class SwitchLink:
    """Point a symbolic link at another target, atomically."""

    path: str
    to: str

    def frame(self) -> dict[str, Any]:
        """Return the installer's frame."""
        return {"op": "link", "path": self.path, "to": self.to}

    def __str__(self) -> str:
        return f"switch {self.path} -> {self.to}"


@dataclass(frozen=True, slots=True)
class RunProgram:
    """Run a program.

    `undo` is the program that undeploy runs to reverse it; `hint` says what to do when it fails.
    `restarts` marks the program that starts the new agent: its failure leads to a rollback instead
    of an error.
    """

    argv: tuple[str, ...]
    undo: tuple[str, ...] = ()
    hint: str = ""
    restarts: bool = False
    timeout_s: float = 60.0

    def frame(self) -> dict[str, Any]:
        """Return the installer's frame."""
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
    """Check over gRPC that the right agent answers; otherwise roll back."""

    host: str
    version: str

    def frame(self) -> dict[str, Any]:
        """Return the frame for printing; the controller runs this command, not the installer."""
        return {"op": "health", "host": self.host, "version": self.version}

    def __str__(self) -> str:
        return (
            f"wait until the agent answers over gRPC as host {self.host}, version {self.version};"
            " otherwise go back to the previous version"
        )


@dataclass(frozen=True, slots=True)
class DropRollback:
    """Remove what was saved for a rollback, and versions, wheels and Pythons not in `keep`."""

    keep: tuple[str, ...]

    def frame(self) -> dict[str, Any]:
        """Return the installer's frame."""
        return {"op": "forget", "keep": self.keep}

    def __str__(self) -> str:
        return "remove versions and wheels that neither this version nor the previous one uses"


@dataclass(frozen=True, slots=True)
class RemoveAll:
    """Remove everything on the installation's list, then the list.

    `logs` are the names of files that the agent's keeper creates in the root.
    """

    root: str
    logs: tuple[str, ...]

    def frame(self) -> dict[str, Any]:
        """Return the installer's frame."""
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
    """Return a command as `--json` prints it: a text, and its frame without file contents."""
    return {"text": str(command), **command.frame()}
