"""Owns where a trust folder is looked for. Opens none."""

from __future__ import annotations

import os
from pathlib import Path


def trust_folder_path(named: str, state: Path) -> Path:
    """The folder named, else $BENCHFLEET_TRUST, else `trust` in the state folder of `fleetctl` or
    beside that of the controller.
    """
    chosen = named or os.environ.get("BENCHFLEET_TRUST", "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    inside, beside = state / "trust", state.parent / "trust"
    return beside if beside.is_dir() and not inside.is_dir() else inside
