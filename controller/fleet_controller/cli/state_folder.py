"""Owns where things lie on this machine: the state folder and what is in it. Creates nothing."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The folders below one state folder."""

    path: Path

    @property
    def controller(self) -> Path:
        """Store, artifacts, lock and socket of the controller."""
        return self.path / "controller"

    @property
    def store(self) -> Path:
        """The controller's SQLite file."""
        return self.controller / "store.sqlite3"

    @property
    def lock(self) -> Path:
        """Held by the one controller that works in this state folder."""
        return self.controller / "controller.lock"

    @property
    def controller_log(self) -> Path:
        """What the parts of an embedded controller log."""
        return self.controller / "controller.log"

    @property
    def artifacts(self) -> Path:
        """Logs and raw requests that the controller has fetched."""
        return self.controller / "artifacts"

    @property
    def agent(self) -> Path:
        """Journal and trials of the local agent."""
        return self.path / "agent"

    @property
    def bugs(self) -> Path:
        """Tracebacks of what should not have happened."""
        return self.path / "bugs"


def resolve_state_folder(state: str = "") -> StateFolder:
    """The state folder: `state`, else $BENCHFLEET_STATE, else benchfleet below $XDG_STATE_HOME or
    ~/.local/state.
    """
    named = state or os.environ.get("BENCHFLEET_STATE", "")
    if named:
        return StateFolder(Path(named).expanduser().absolute())
    parent = os.environ.get("XDG_STATE_HOME", "") or "~/.local/state"
    return StateFolder(Path(parent).expanduser().absolute() / "benchfleet")


def local_host_name() -> str:
    """What this machine calls itself: the host of its trials unless --host-name says otherwise."""
    return socket.gethostname() or "localhost"
