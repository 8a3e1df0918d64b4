"""Owns a process that writes a journal as fast as it can and prints each number once it is on disk;
made to be killed.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from fleet_agent.storage.journal import Journal
from fleet_protos.events import Body, TrialAccepted, TrialOver, WarmedUp
from fleet_protos.trial_types import Phase


def main() -> None:
    """FOLDER MODE: `append` only appends; `compact` ends a trial, acknowledges it and compacts
    after every third event.
    """
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    journal = Journal.open(folder, compact_above_bytes=1 if mode == "compact" else 1 << 30)
    bodies: Iterator[Body] = itertools.cycle((TrialAccepted(), WarmedUp("busy" * 200), TrialOver()))
    for count, body in enumerate(bodies):
        trial = f"t{count // 3}"
        event = journal.append(body, trial, 1, cause=0, phase=Phase.MEASURING, time_unix_ns=count)
        sys.stdout.write(f"{event.sequence} {trial}\n")
        sys.stdout.flush()
        if mode == "compact" and isinstance(body, TrialOver):
            journal.acknowledge(event.sequence)


if __name__ == "__main__":
    main()
