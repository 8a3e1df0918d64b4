"""Finds the path of the trust folder."""

from __future__ import annotations

import os
from pathlib import Path


def trust_folder_path(named: str, state: Path) -> Path:
    """Return the folder `named`, or else $BENCHFLEET_TRUST. Without both, return `trust` in the
    state folder, or `trust` next to the state folder if only that one exists.
    """
    chosen = named or os.environ.get("BENCHFLEET_TRUST", "")
    if chosen:
        return Path(chosen).expanduser().absolute()
    inside, sibling = state / "trust", state.parent / "trust"
    return sibling if sibling.is_dir() and not inside.is_dir() else inside
