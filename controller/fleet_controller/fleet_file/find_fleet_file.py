"""Owns where a fleet file is looked for. Opens none."""

from __future__ import annotations

import os
from pathlib import Path

_HERE = Path("fleet.yaml")


def find_fleet_file(named: str | None) -> Path | None:
    """The file of `--fleet`, else $BENCHFLEET_FLEET, else ./fleet.yaml where there is one; None
    when there is none.
    """
    text = named or os.environ.get("BENCHFLEET_FLEET", "")
    if text:
        return Path(text).expanduser()
    return _HERE if _HERE.exists() else None
