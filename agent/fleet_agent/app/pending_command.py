"""Reads from an agent's journal what the controller does not have yet. The agent need not run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet_agent.storage.artifact_retention import ArtifactRetention
from fleet_agent.storage.journal_file import read_header, read_records
from fleet_protos.errors import ConfigError

AttemptKey = tuple[str, int]  # trial id and attempt


@dataclass(slots=True)
class UnacknowledgedState:
    """Collects what the records of a journal show. `open_trials` are the trials that are not over.
    `acknowledged` is the sequence number up to which the controller has stored all events.
    """

    last_sequence: int
    acknowledged: int
    open_trials: dict[AttemptKey, None] = field(default_factory=dict)

    def add_record(self, record: dict[str, Any]) -> None:
        """Take the next record of the journal into account."""
        if "acknowledged" in record:
            self.acknowledged = max(int(record["acknowledged"]), self.acknowledged)
            return
        key = (str(record.get("trial_id", "")), int(record.get("attempt", 0)))
        self.last_sequence = int(record.get("sequence", self.last_sequence))
        if "trial_accepted" in record:
            self.open_trials[key] = None
        if "trial_over" in record:
            self.open_trials.pop(key, None)


def read_pending(state: Path) -> dict[str, object]:
    """Return what the controller does not have yet, by name:

    - `trials`: the trials that are not over, as TRIAL/ATTEMPT
    - `unacknowledged`: the number of events that no controller has stored
    - `owed`: the attempts whose files no controller has released

    This also works while the agent runs: a last record that is still being written is ignored.
    Raises JournalDamaged if the journal is damaged. Raises ConfigError if it cannot be read.
    """
    path = state / "journal" / "events.jsonl"
    try:
        if not path.exists():
            return {"trials": [], "unacknowledged": 0, "owed": []}
        base = int(read_header(path)["base_sequence"])
        found = UnacknowledgedState(base, base)
        for number, _, content in read_records(path):
            if number > 1:
                found.add_record(json.loads(content))
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", "run this as the agent's user or as root"
        ) from error
    owed = ArtifactRetention(state / "artifacts").unreleased(frozenset(found.open_trials))
    trials = [f"{trial}/{attempt}" for trial, attempt in found.open_trials]
    return {
        "trials": trials,
        "unacknowledged": max(found.last_sequence - found.acknowledged, 0),
        "owed": owed,
    }
