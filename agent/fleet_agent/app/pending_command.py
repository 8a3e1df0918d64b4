"""Owns telling what a journal still holds for the controller, without its agent: for whoever wants to end or remove it. Changes nothing."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet_agent.storage.artifact_retention import Shelf
from fleet_agent.storage.journal_file import read_header, records
from fleet_protos.errors import ConfigError

Key = tuple[str, int]  # trial id and attempt


@dataclass(slots=True)
class Pending:
    """What was read so far. `open`: trials that are not over."""

    last: int
    acknowledged: int
    open: dict[Key, None] = field(default_factory=dict)

    def read(self, told: dict[str, Any]) -> None:
        """Take in one record."""
        if "acknowledged" in told:
            self.acknowledged = max(int(told["acknowledged"]), self.acknowledged)
            return
        key = (str(told.get("trial_id", "")), int(told.get("attempt", 0)))
        self.last = int(told.get("sequence", self.last))
        if "trial_accepted" in told:
            self.open[key] = None
        if "trial_over" in told:
            self.open.pop(key, None)


def pending(state: Path) -> dict[str, object]:
    """`trials`: TRIAL/ATTEMPT that are not over; `unacknowledged`: events that no controller has; `owed`: attempts whose files it lacks.

    Works while the agent runs: a last record that is being written counts as not there. Raises JournalDamaged, ConfigError.
    """
    path = state / "journal" / "events.jsonl"
    try:
        if not path.exists():
            return {"trials": [], "unacknowledged": 0, "owed": []}
        base = int(read_header(path)["base_sequence"])
        found = Pending(base, base)
        for number, _, content in records(path):
            if number > 1:
                found.read(json.loads(content))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "run this as the agent's user or as root") from error
    owed = Shelf(state / "artifacts").owed(frozenset(found.open))
    trials = [f"{trial}/{attempt}" for trial, attempt in found.open]
    return {"trials": trials, "unacknowledged": max(found.last - found.acknowledged, 0), "owed": owed}
