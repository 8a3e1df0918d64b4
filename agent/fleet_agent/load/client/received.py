"""Holds one answer as it arrived: its bytes, and for each read its arrival time and the end of its
bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class RecordedReads:
    """The reads of an answer. `times_ns` has the perf_counter_ns of each read, `ends` the number of
    bytes up to the end of each read. `len` counts reads.
    """

    data: bytes = b""
    times_ns: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("Q"))

    @staticmethod
    def from_pairs(pairs: Iterable[tuple[int, bytes]]) -> RecordedReads:
        """Make it from the time and the bytes of each read; no read may be empty."""
        reads = list(pairs)
        ends = array("Q", accumulate(len(data) for _, data in reads))
        return RecordedReads(
            b"".join(data for _, data in reads), array("q", [ns for ns, _ in reads]), ends
        )

    def __len__(self) -> int:
        return len(self.times_ns)

    @property
    def last_ns(self) -> int:
        """The time of the last read; 0 if nothing arrived."""
        return self.times_ns[-1] if self.times_ns else 0

    def pairs(self) -> list[tuple[int, bytes]]:
        """Return the time and the bytes of each read, for people and tests."""
        return [
            (ns, self.data[start:end])
            for ns, (start, end) in zip(self.times_ns, pairwise([0, *self.ends]), strict=True)
        ]


class DeferredReads(Protocol):
    """An answer as its stream stored it. Nothing is copied while a run goes on, when the slot's
    next request is due.
    """

    @property
    def count(self) -> int:
        """The number of reads."""
        ...

    @property
    def size(self) -> int:
        """The number of bytes."""
        ...

    @property
    def last_ns(self) -> int:
        """The time of the last read; 0 if nothing arrived."""
        ...

    def reads(self) -> RecordedReads:
        """Return the answer, copied by this call."""
        ...


@dataclass(frozen=True, slots=True)
class BufferedReads:
    """Implements DeferredReads with Python objects."""

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
