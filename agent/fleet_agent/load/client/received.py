"""Holds one answer as it arrived: the bytes of each read and the time at which they arrived."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class RecordedReads:
    """Holds the reads of one answer. Its length is the number of reads.

    `data`: the bytes of all reads.
    `times_ns`: the arrival time of each read, as perf_counter_ns.
    `ends`: the offset in `data` at which each read ends.
    """

    data: bytes = b""
    times_ns: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("Q"))

    @staticmethod
    def from_pairs(pairs: Iterable[tuple[int, bytes]]) -> RecordedReads:
        """Return the reads with these times and bytes. The bytes of a read must not be empty."""
        reads = list(pairs)
        ends = array("Q", accumulate(len(data) for _, data in reads))
        return RecordedReads(
            b"".join(data for _, data in reads), array("q", [ns for ns, _ in reads]), ends
        )

    def __len__(self) -> int:
        return len(self.times_ns)

    @property
    def last_ns(self) -> int:
        """Return the arrival time of the last read; 0 if nothing arrived."""
        return self.times_ns[-1] if self.times_ns else 0

    def pairs(self) -> list[tuple[int, bytes]]:
        """Return the time and the bytes of each read. This is for people and tests."""
        return [
            (ns, self.data[start:end])
            for ns, (start, end) in zip(self.times_ns, pairwise([0, *self.ends]), strict=True)
        ]


class DeferredReads(Protocol):
    """Holds an answer as its stream stored it. It is copied later, because the slot's next request
    is due as soon as the answer has ended.
    """

    @property
    def count(self) -> int:
        """Return the number of reads in the answer."""
        ...

    @property
    def size(self) -> int:
        """Return the number of bytes in the answer."""
        ...

    @property
    def last_ns(self) -> int:
        """Return the arrival time of the last read; 0 if nothing arrived."""
        ...

    def reads(self) -> RecordedReads:
        """Return a copy of the answer as Python objects."""
        ...


@dataclass(frozen=True, slots=True)
class BufferedReads:
    """Implements DeferredReads for answers that are already Python objects."""

    times_ns: Sequence[int] = ()
    parts: Sequence[bytes] = ()
    size: int = 0

    @property
    def count(self) -> int:
        return len(self.parts)

    @property
    def last_ns(self) -> int:
        return self.times_ns[-1] if self.times_ns else 0

    def reads(self) -> RecordedReads:
        return RecordedReads.from_pairs(zip(self.times_ns, self.parts, strict=True))


NO_READS: Final = BufferedReads()
