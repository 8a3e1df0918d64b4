"""Computes exact percentiles: of values in memory, or of a stream that does not fit in memory but
can be read several times.

A percentile is that of the sample itself, with linear interpolation between the closest ranks
(NumPy's default, Hyndman and Fan's type 7). No percentile is estimated from histogram buckets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import floor
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

# bits dropped in each pass: nanoseconds are counted by about 1 ms, then by about 1 µs, then exactly
_SHIFTS: Final = (20, 10, 0)

Stream = Callable[[], Iterable[Any]]  # each call iterates over the same Arrow arrays of int64


def percentile(values: Sequence[float] | Any, share: float) -> float:
    """Return a percentile of numbers or of an Arrow array without nulls. `share` is between 0 and
    1. Return 0.0 if there are no values.
    """
    return percentiles(values, share)[0]


def percentiles(values: Sequence[float] | Any, *shares: float) -> list[float]:
    """Return several percentiles of the same values, which are sorted only once. Return 0.0 for
    each if there are no values.
    """
    if not len(values):
        return [0.0 for _ in shares]
    ordered = values.sort() if isinstance(values, pa.Array) else sorted(values)
    ranks = [_ranks(share, len(ordered)) for share in shares]
    return [
        _interpolate(_number(ordered[low]), _number(ordered[high]), part)
        for low, high, part in ranks
    ]


def stream_percentiles(stream: Stream, *shares: float) -> list[float]:
    """Return exact percentiles of the integers in a stream. Return an empty list if there are no
    values.

    The stream is read three times, and only one array and some counts are held in memory. The first
    pass counts values by their leading bits, which shows in which ranges the wanted ranks are. The
    second pass counts only values in these ranges, by more bits. The third pass counts by all bits.
    """
    counts = _count_values(stream, _SHIFTS[0])
    total = sum(counts.values())
    if not total:
        return []
    ranks = [_ranks(share, total) for share in shares]
    # rank → its group, and its rank within the group
    found = {rank: _locate_rank(counts, rank) for low, high, _ in ranks for rank in (low, high)}
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
    """Count values by the bits that remain after a right shift by `shift`. With `groups`, count
    only the values whose bits after a shift by `groups_shift` are in `groups`.
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
    """Return (key, rank within the key) for a rank among all values, with the keys in ascending
    order.
    """
    for key in sorted(counts):
        if rank < counts[key]:
            return key, rank
        rank -= counts[key]
    missing = rank + 1
    raise ValueError(f"the stream has changed between two passes: {missing} values are missing")


def _ranks(share: float, count: int) -> tuple[int, int, float]:
    """Return the two ranks next to the percentile, and its distance from the lower rank."""
    position = share * (count - 1)
    low = floor(position)
    return low, min(low + 1, count - 1), position - low


def _interpolate(low: float, high: float, part: float) -> float:
    return low + (high - low) * part


def _number(value: Any) -> Any:
    return value.as_py() if isinstance(value, pa.Scalar) else value
