"""Collects communicators and their ranks from NCCL's `Init START` and `Init COMPLETE` lines. The
number of communicators is limited.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from fleet_knowledge.nccl.log.nccl_facts import Communicator

_LINE = re.compile(
    r"(?:(?P<call>ncclComm\w+) )?comm 0x\w+ rank (?P<rank>\d{1,7}) nranks (?P<nranks>\d{1,7}) "
    r"(?P<rest>.{0,400}?)- Init (?P<what>START|COMPLETE)"
)
_IDENTIFIER = re.compile(r"commId (0x\w{1,32})")
_MAX_COMMS = 256
_MAX_RANKS = 4096

Process = tuple[str, int, int | None]


@dataclass(slots=True)
class _Ranks:
    nranks: int
    started: set[int] = field(default_factory=set)
    complete: set[int] = field(default_factory=set)


class CommunicatorTable:
    """Holds communicators by their identifier. Before 2.21, a communicator that was split off
    another has no identifier, so it is only counted.
    """

    def __init__(self) -> None:
        self._comms: dict[str, _Ranks] = {}
        self._splits: dict[str, Counter[int]] = {"START": Counter(), "COMPLETE": Counter()}
        self._largest: dict[Process, tuple[int, int]] = {}

    def add_line(self, process: Process, text: str) -> bool:
        """Record the communicator in `text`. Return False if the text contains none."""
        found = _LINE.search(text)
        if not found:
            return False
        rank, nranks = int(found["rank"]), int(found["nranks"])
        self._update_largest(process, rank, nranks)
        if found["call"] in ("ncclCommSplit", "ncclCommShrink"):
            self._splits[found["what"]][rank] += len(self._splits[found["what"]]) < _MAX_RANKS
            return True
        identifier = _IDENTIFIER.search(found["rest"])
        name = identifier[1] if identifier else "unnamed"
        if name not in self._comms and len(self._comms) >= _MAX_COMMS:
            return True
        ranks = self._comms.setdefault(name, _Ranks(nranks))
        seen = ranks.complete if found["what"] == "COMPLETE" else ranks.started
        if len(seen) < _MAX_RANKS:
            seen.add(rank)
        return True

    def _update_largest(self, process: Process, rank: int, nranks: int) -> None:
        known = self._largest.get(process)
        if (known is None and len(self._largest) < _MAX_RANKS) or (known and nranks > known[0]):
            self._largest[process] = (nranks, rank)

    def rank_by_process(self) -> dict[Process, int]:
        """Return each process's rank in the largest communicator of that process."""
        return {process: rank for process, (_, rank) in self._largest.items()}

    def communicators(self) -> dict[str, Communicator]:
        """Return each communicator by its identifier, with its ranks in order."""
        return {
            name: Communicator(
                ranks.nranks, tuple(sorted(ranks.started)), tuple(sorted(ranks.complete))
            )
            for name, ranks in self._comms.items()
        }

    def split_count(self) -> int:
        """Return the number of communicators that were split off another. Each of them has exactly
        one rank 0, so it is enough to count the lines of rank 0.
        """
        done = self._splits["COMPLETE"] or self._splits["START"]
        return max(done.values(), default=0)
