"""Owns exact percentiles: of values at hand, and of a stream too long for memory that can be run
through again. Pure.

A percentile here is the sample's own, with linear interpolation between the closest ranks (NumPy's
default, Hyndman and Fan's type 7): never one of buckets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import floor
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_SHIFTS: Final = (
    20,
    10,
    0,
)  # nanoseconds are counted by milliseconds, then by microseconds where it matters, then each

Stream = Callable[[], Iterable[Any]]  # each call gives the same Arrow arrays of int64 anew


def percentile(values: Sequence[float] | Any, share: float) -> float:
    """Of a sequence of numbers, or an Arrow array without nulls. `share` is in 0..1; 0.0 for no
    values.
    """
    return percentiles(values, share)[0]


def percentiles(values: Sequence[float] | Any, *shares: float) -> list[float]:
    """Several of the same values, which are sorted once. 0.0 for no values."""
    if not len(values):
        return [0.0 for _ in shares]
    ordered = values.sort() if isinstance(values, pa.Array) else sorted(values)
    ranks = [_ranks(share, len(ordered)) for share in shares]
    return [
        _interpolate(_number(ordered[low]), _number(ordered[high]), part)
        for low, high, part in ranks
    ]


def stream_percentiles(stream: Stream, *shares: float) -> list[float]:
    """Percentiles of all integers that the stream gives, exact in three runs through it, in the
    memory of one array and some counts.

    Each run counts values by their leading bits, and tells in which of these groups the wanted
    ranks lie; the next one counts those groups alone, by more bits; the last one by all of them.
    Empty for no values.
    """
    counts = _count_values(stream, _SHIFTS[0])
    total = sum(counts.values())
    if not total:
        return []
    ranks = [_ranks(share, total) for share in shares]
    found = {
        rank: _locate_rank(counts, rank) for low, high, _ in ranks for rank in (low, high)
    }  # rank → its group, and its rank within that
    for before, shift in pairwise(_SHIFTS):
        counts = _count_values(stream, shift, {group for group, _ in found.values()}, before)
        found = {
            rank: _locate_rank(_counts_of_group(counts, group, before - shift), left)
            for rank, (group, left) in found.items()
        }
    return [_interpolate(found[low][0], found[high][0], part) for low, high, part in ranks]


def _count_values(
    stream: Stream, shift: int, groups: Collection[int] = (), groups_shift: int = 0
) -> Counter[int]:
    """How many values there are by what is left of them after the shift: of all, or of those in the
    groups.
    """
    counts: Counter[int] = Counter()
    for values in stream():
        near = (
            values.filter(
                pc.is_in(pc.shift_right(values, groups_shift), pa.array(sorted(groups), pa.int64()))
            )
            if groups
            else values
        )
        found = pc.shift_right(near, shift).value_counts()
        counts.update(
            dict(zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True))
        )
    return counts


def _counts_of_group(counts: Mapping[int, int], group: int, bits: int) -> dict[int, int]:
    return {key: count for key, count in counts.items() if key >> bits == group}


def _locate_rank(counts: Mapping[int, int], rank: int) -> tuple[int, int]:
    """The key that has the rank when all are laid out in order, and the rank within the key."""
    for key in sorted(counts):
        if rank < counts[key]:
            return key, rank
        rank -= counts[key]
    raise ValueError(f"the stream has changed: it is {rank + 1} values shorter than before")


def _ranks(share: float, count: int) -> tuple[int, int, float]:
    """The ranks between which the percentile lies, and how far it is from the lower one."""
    position = share * (count - 1)
    low = floor(position)
    return low, min(low + 1, count - 1), position - low


def _interpolate(low: float, high: float, part: float) -> float:
    return low + (high - low) * part


def _number(value: Any) -> Any:
    return value.as_py() if isinstance(value, pa.Scalar) else value
