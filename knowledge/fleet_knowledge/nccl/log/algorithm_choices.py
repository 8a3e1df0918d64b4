"""Collects from NCCL's log which algorithm, protocol and channels NCCL chose by collective and
size. The number of rows is limited.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from fleet_knowledge.nccl.log.nccl_facts import CollectiveChoice

ALGORITHM_NUMBERS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
"""Names of the algorithm numbers that the log has up to 2.23 (src/include/nccl_common.h)."""
PROTOCOL_NUMBERS = ("LL", "LL128", "SIMPLE")

_LINE = re.compile(
    r"(?:(?P<func>[A-Z]\w+)(?: \[(?P<kind>[\w ]{1,40})\])?: )?(?P<bytes>\d{1,20}) Bytes -> "
    r"(?:Algo (?P<algo>\w+) proto (?P<proto>\w+)(?:"
    r" channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\})?"
    r"|Kernel (?P<kernel>\w+)(?: nchannels (?P<channels>\d+))?|(?P<copy>cudaMemcpy|RMA proxy))"
)
_MAX_RANKS = 64
_MAX_ROWS = 512  # of one rank

Process = tuple[str, int, int | None]
_Key = tuple[str | None, int, str, str, int | None]


class ChoiceTable:
    """Counts NCCL's choices for each rank. Only one rank is shown, because all ranks of a
    collective make the same choices.
    """

    def __init__(self) -> None:
        self._tables: dict[Process, dict[_Key, int]] = {}
        self.dropped = 0

    def add_line(self, process: Process, text: str, times: int = 1) -> bool:
        """Count the choice in `text` `times` times. Return False if the text contains no choice."""
        found = _LINE.search(text)
        if not found:
            return False
        table = self._tables.get(process)
        if table is None:
            if len(self._tables) >= _MAX_RANKS:
                self.dropped += 1
                return True
            table = self._tables[process] = {}
        key = _key(found)
        if key in table or len(table) < _MAX_ROWS:
            table[key] = table.get(key, 0) + times
        else:
            self.dropped += 1
        return True

    def rows(self, ranks: Mapping[Process, int]) -> tuple[CollectiveChoice, ...]:
        """Return the table of one rank, AllReduce first, by size.

        That rank is rank 0, otherwise the lowest known rank, otherwise the lowest device.
        """
        if not self._tables:
            return ()
        shown = min(
            self._tables,
            key=lambda process: (
                ranks.get(process, 1 << 30),
                process[2] if process[2] is not None else -1,
                process[1],
            ),
        )
        rows = (CollectiveChoice(*key, count) for key, count in self._tables[shown].items())
        return tuple(
            sorted(
                rows,
                key=lambda row: (
                    row.func != "AllReduce",
                    row.func or "",
                    row.bytes,
                    row.algo,
                    row.proto,
                ),
            )
        )


def _key(found: re.Match[str]) -> _Key:
    size = int(found["bytes"])
    if found["kernel"]:
        return (
            found["func"],
            size,
            "SYMMETRIC",
            found["kernel"],
            int(found["channels"]) if found["channels"] else None,
        )
    if found["copy"]:
        return found["func"], size, "COPY_ENGINE", "", None
    channels = int(found["high"]) - int(found["low"]) + 1 if found["low"] else None
    return (
        found["func"],
        size,
        _name_of_number(found["algo"], ALGORITHM_NUMBERS),
        _name_of_number(found["proto"], PROTOCOL_NUMBERS),
        channels,
    )


def _name_of_number(word: str, numbered: tuple[str, ...]) -> str:
    if word.isdecimal() and len(word) < 10:
        return numbered[int(word)] if int(word) < len(numbered) else word
    return word.upper()
