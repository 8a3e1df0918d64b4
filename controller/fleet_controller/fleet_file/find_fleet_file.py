"""Finds the fleet file to use."""

from __future__ import annotations

import os
from pathlib import Path

_HERE = Path("fleet.yaml")


def find_fleet_file(named: str | None) -> Path | None:
    """Return the file that `--fleet` names, else $BENCHFLEET_FLEET, else ./fleet.yaml if it exists,
    else None.
    """
    text = named or os.environ.get("BENCHFLEET_FLEET", "")
    if text:
        return Path(text).expanduser()
    return _HERE if _HERE.exists() else None
