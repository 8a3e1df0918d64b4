"""Owns what a deploy may do on a host, as frozen values that can be printed, sent and tested. Does
none of it.

Each is one frame of `remote/installer.py`; a program's arguments are a list, never a line for a
shell.
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
    """Mode and owner of something. `owner` empty: whoever we are there; `is_owner` False: root owns
    it, the owner's group reads it.
    """

    mode: int = 0o755
    owner: str = ""
    is_owner: bool = True

    def frame(self) -> dict[str, Any]:
        """As the installer takes it."""
        return {"mode": self.mode, "owner": self.owner, "owned": self.is_owner}

    def __str__(self) -> str:
        named = f" {self.owner if self.is_owner else f'root:{self.owner}'}" if self.owner else ""
        return f"{self.mode:04o}{named}"


@dataclass(frozen=True, slots=True)
class MakeFolder:
    """Make a folder unless it is there. `agents`: names of what an agent will make in it, which is
    removed with all else.
    """

    path: str
    ownership: FileOwnership = FileOwnership()
    agents: tuple[str, ...] = ()

    def frame(self) -> dict[str, Any]:
        """As the installer takes it."""
        return {"op": "folder", "path": self.path, "agents": self.agents, **self.ownership.frame()}

    def __str__(self) -> str:
        return f"make folder {self.path} ({self.ownership})"


@dataclass(frozen=True, slots=True)
class PutFile:
    """Write a small file whole, with its content from here. `secret`: its content is shown nowhere."""

    path: str
    content: bytes = field(repr=False)
    ownership: FileOwnership = FileOwnership(0o644)
    secret: bool = False

    def frame(self) -> dict[str, Any]:
        """As the installer takes it; `payload` follows."""
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
    """Copy a wheel, check its digest, unpack it below `wheels/`."""

    name: str
    source: Path
    size: int
    sha256: str
    op: str = "wheel"  # or `python`: a relocatable interpreter in a tar file

    def frame(self) -> dict[str, Any]:
        """As the installer takes it; the file follows."""
        return {"op": self.op, "name": self.name, "size": self.size, "sha256": self.sha256}

    def __str__(self) -> str:
        checked = f"check sha256:{self.sha256[:12]}…, unpack it into {self.op}s/{self.name}"
        return f"copy {self.source.name} ({self.size / 1e6:.1f} MB), {checked}"


@dataclass(frozen=True, slots=True)
class MakeVersion:
    """Put a version together from files (name, content, mode) and links (name, target) below
    `versions/`.
    """

    name: str
    files: tuple[tuple[str, str, int], ...]
    links: tuple[tuple[str, str], ...]

    def frame(self) -> dict[str, Any]:
        """As the installer takes it."""
        return {"op": "version", "name": self.name, "files": self.files, "links": self.links}

    def __str__(self) -> str:
        return f"make versions/{self.name} ({len(self.files)} small files)"


@dataclass(frozen=True, slots=True)
class RequireIdle:
    """Stop here, before anything that runs is touched, when the agent's journal shows trials that
    are not over.
    """

    argv: tuple[str, ...]
    timeout_s: float = 20.0

    def frame(self) -> dict[str, Any]:
        """As the installer takes it."""
        return {"op": "run", "argv": self.argv, "timeout_s": self.timeout_s}

    def __str__(self) -> str:
        return f"stop unless no trial runs: {shlex.join(self.argv)}"


@dataclass(frozen=True, slots=True)
class SaveForRollback:
    """Keep what a switch replaces, so that it can be put back."""

    paths: tuple[str, ...]

    def frame(self) -> dict[str, Any]:
        """As the installer takes it."""
        return {"op": "remember", "paths": self.paths}

    def __str__(self) -> str:
        return f"keep for going back: {', '.join(self.paths)}"


@dataclass(frozen=True, slots=True)
class SwitchLink:
    """Let a symbolic link point elsewhere, at once."""

    path: str
    to: str

    def frame(self) -> dict[str, Any]:
        """As the installer takes it."""
        return {"op": "link", "path": self.path, "to": self.to}

    def __str__(self) -> str:
        return f"switch {self.path} -> {self.to}"


@dataclass(frozen=True, slots=True)
class RunProgram:
    """Run a program. `undo`: what takes it back when all is removed; `hint`: what to do when it
    fails.

    `restarts`: afterwards the agent is the one that was switched to, unless it fails, which is the
    agent's failure and no reason to stop.
    """

    argv: tuple[str, ...]
    undo: tuple[str, ...] = ()
    hint: str = ""
    restarts: bool = False
    timeout_s: float = 60.0

    def frame(self) -> dict[str, Any]:
        """As the installer takes it."""
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
    """Ask the agent over gRPC who it is; with a wrong answer or none all goes back to what was
    before.
    """

    host: str
    version: str

    def frame(self) -> dict[str, Any]:
        """Not for the installer: the controller asks."""
        return {"op": "health", "host": self.host, "version": self.version}

    def __str__(self) -> str:
        return f"wait until the agent answers over gRPC as host {self.host}, version {self.version}; else go back to the version before"


@dataclass(frozen=True, slots=True)
class DropRollback:
    """Drop what was kept for going back, and versions, wheels and Pythons that are not named."""

    keep: tuple[str, ...]

    def frame(self) -> dict[str, Any]:
        """As the installer takes it."""
        return {"op": "forget", "keep": self.keep}

    def __str__(self) -> str:
        return "remove versions and wheels that neither this version nor the one before uses"


@dataclass(frozen=True, slots=True)
class RemoveAll:
    """Remove everything on the installation's list, and the list. `logs`: what an agent's keeper
    makes beside it.
    """

    root: str
    logs: tuple[str, ...]

    def frame(self) -> dict[str, Any]:
        """As the installer takes it."""
        return {"op": "remove", "logs": self.logs}

    def __str__(self) -> str:
        return f"remove all that the list {self.root}/made.jsonl names, then the list"


HostCommand = (
    MakeFolder | PutFile | SendWheel | MakeVersion | RequireIdle | SaveForRollback | SwitchLink | RunProgram | CheckHealth | DropRollback | RemoveAll
)  # fmt: skip


def command_json(command: HostCommand) -> Mapping[str, Any]:
    """A command as `--json` prints it: what it does in words, and its frame without the content of
    files.
    """
    return {"text": str(command), **command.frame()}
