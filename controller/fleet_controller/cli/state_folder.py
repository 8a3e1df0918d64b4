"""Names the state folder of this machine and the files in it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class StateFolder:
    """A state folder and the paths in it. Nothing is created."""

    path: Path

    @property
    def controller(self) -> Path:
        """The folder with the store, artifacts, lock and socket of the controller."""
        return self.path / "controller"

    @property
    def store(self) -> Path:
        """The controller's SQLite database."""
        return self.controller / "store.sqlite3"

    @property
    def store_lock(self) -> Path:
        """The lock file of the store, which is there since the first start."""
        return self.controller / "store.sqlite3.lock"

    @property
    def lock(self) -> Path:
        """The lock file that the running controller of this state folder holds."""
        return self.controller / "controller.lock"

    @property
    def controller_log(self) -> Path:
        """The log of a controller that runs inside a command."""
        return self.controller / "controller.log"

    @property
    def artifacts(self) -> Path:
        """The logs and raw requests that the controller has fetched."""
        return self.controller / "artifacts"

    @property
    def agent(self) -> Path:
        """The journal and trials of the local agent."""
        return self.path / "agent"

    @property
    def bugs(self) -> Path:
        """The tracebacks of bugs in fleetctl."""
        return self.path / "bugs"


def resolve_state_folder(state: str = "") -> StateFolder:
    """Return the state folder: `state`, else $BENCHFLEET_STATE, else `benchfleet` in
    $XDG_STATE_HOME or ~/.local/state.
    """
    named = state or os.environ.get("BENCHFLEET_STATE", "")
    if named:
        return StateFolder(Path(named).expanduser().absolute())
    parent = os.environ.get("XDG_STATE_HOME", "") or "~/.local/state"
    return StateFolder(Path(parent).expanduser().absolute() / "benchfleet")


def local_host_name() -> str:
    """Return this machine's own name, the default of --host-name."""
    return socket.gethostname() or "localhost"
