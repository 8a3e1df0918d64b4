"""Owns one answer as it came: its bytes, and for each read when it arrived and where its bytes end.
Interprets none of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class RecordedReads:
    """`times_ns` are perf_counter_ns, one for each read; `ends` the number of bytes up to the end
    of each read. `len` counts reads.
    """

    data: bytes = b""
    times_ns: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("Q"))

    @staticmethod
    def from_pairs(pairs: Iterable[tuple[int, bytes]]) -> RecordedReads:
        """From the time and the bytes of each read, none of which is empty."""
        reads = list(pairs)
        ends = array("Q", accumulate(len(data) for _, data in reads))
        return RecordedReads(
            b"".join(data for _, data in reads), array("q", [ns for ns, _ in reads]), ends
        )

    def __len__(self) -> int:
        return len(self.times_ns)

    @property
    def last_ns(self) -> int:
        """Of the last read; 0: nothing came."""
        return self.times_ns[-1] if self.times_ns else 0

    def pairs(self) -> list[tuple[int, bytes]]:
        """The time and the bytes of each read: for people and tests."""
        return [
            (ns, self.data[start:end])
            for ns, (start, end) in zip(self.times_ns, pairwise([0, *self.ends]), strict=True)
        ]


class DeferredReads(Protocol):
    """An answer as its line put it aside: nothing of it is copied while a run goes on, when the
    next request of its slot is due.
    """

    @property
    def count(self) -> int:
        """How many reads."""
        ...

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        ...

    @property
    def last_ns(self) -> int:
        """Of the last read; 0: nothing came."""
        ...

    def reads(self) -> RecordedReads:
        """The answer itself, put together now."""
        ...


@dataclass(frozen=True, slots=True)
class BufferedReads:
    """See `Taken`: the reads as Python objects."""

    times_ns: Sequence[int] = ()
    parts: Sequence[bytes] = ()
    size: int = 0

    @property
    def count(self) -> int:
        """See `Taken`."""
        return len(self.parts)

    @property
    def last_ns(self) -> int:
        """See `Taken`."""
        return self.times_ns[-1] if self.times_ns else 0

    def reads(self) -> RecordedReads:
        """See `Taken`."""
        return RecordedReads.from_pairs(zip(self.times_ns, self.parts, strict=True))


NO_READS: Final = BufferedReads()
