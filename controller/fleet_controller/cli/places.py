"""Owns where things lie on this machine: the state folder and what is in it. Creates folders, never files."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

_LONGEST_SOCKET = 100  # bytes; the kernel takes 107 in sun_path


@dataclass(frozen=True, slots=True)
class Places:
    """The folders and sockets below one state folder."""

    state: Path

    @property
    def controller(self) -> Path:
        """Store, artifacts and socket of the controller."""
        return self.state / "controller"

    @property
    def store(self) -> Path:
        """The controller's SQLite file."""
        return self.controller / "store.sqlite3"

    @property
    def agent(self) -> Path:
        """Journal and trials of the local agent."""
        return self.state / "agent"

    @property
    def agent_log(self) -> Path:
        """What the local agent prints."""
        return self.state / "agent" / "agent.log"

    @property
    def agent_socket(self) -> Path:
        """Where the local agent listens."""
        return _short_socket(self.agent / "agent.sock")

    @property
    def controller_socket(self) -> Path:
        """Where `fleetctl up` listens."""
        return _short_socket(self.controller / "controller.sock")

    @property
    def lock(self) -> Path:
        """Held by the one controller that works in this state folder; it holds that controller's pid."""
        return self.controller / "controller.lock"

    @property
    def bugs(self) -> Path:
        """Tracebacks of what should not have happened."""
        return self.state / "bugs"


def places(state: str = "") -> Places:
    """The state folder: `state`, else $BENCHFLEET_STATE, else benchfleet below $XDG_STATE_HOME or ~/.local/state."""
    named = state or os.environ.get("BENCHFLEET_STATE", "")
    if named:
        return Places(Path(named).expanduser().absolute())
    parent = os.environ.get("XDG_STATE_HOME", "") or "~/.local/state"
    return Places(Path(parent).expanduser().absolute() / "benchfleet")


def _short_socket(path: Path) -> Path:
    """The path itself, or a short one of the same meaning where the kernel's limit on socket names is passed."""
    if len(os.fsencode(path)) <= _LONGEST_SOCKET:
        return path
    parent = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return parent / f"benchfleet-{os.getuid()}" / f"{name}.sock"
