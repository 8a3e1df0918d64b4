"""The path of the trust folder."""

from __future__ import annotations

import os
from pathlib import Path


def trust_folder_path(named: str, state: Path) -> Path:
    """Return the named folder, else $BENCHFLEET_TRUST, else `trust` in the state folder of
    `fleetctl` or next to that of the controller.
    """
    chosen = named or os.environ.get("BENCHFLEET_TRUST", "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    inside, sibling = state / "trust", state.parent / "trust"
    return sibling if sibling.is_dir() and not inside.is_dir() else inside
