"""Expands name ranges such as `gpu[01-16]`."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

MOST_NAMES = 10_000
_MOST_RANGES = 4
_PARTS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class BadRange(ValueError):
    """The text is not a valid range. `problem` says why, and `hint` says what to write. Both texts
    can be shown to the user.
    """

    def __init__(
        self, problem: str, hint: str = "write it like `gpu[01-16]` or `gpu[01-03,07]`"
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


@dataclass(frozen=True, slots=True)
class _NumberRange:
    """The numbers from `first` to `last`, both included. They are written with at least `width`
    digits.
    """

    first: int
    last: int
    width: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def __iter__(self) -> Iterator[str]:
        return (f"{number:0{self.width}}" for number in range(self.first, self.last + 1))


def is_range(text: str) -> bool:
    """Return True if `text` stands for several names. The brackets of an IPv6 address do
    not count.
    """
    return any(":" not in inside for inside in _PARTS.findall(text)) or _has_loose_bracket(text)


def expand(text: str) -> tuple[str, ...]:
    """Return all names that `text` stands for. The last range varies fastest. Text without a range
    is returned as it is.

    `gpu[08-10]` keeps its zeros: gpu08, gpu09, gpu10. Raises BadRange for a malformed range. Also
    raises BadRange for more than MOST_NAMES names, before they are built.
    """
    if not is_range(text):
        return (text,)
    if _has_loose_bracket(text):
        raise BadRange("has a bracket without its counterpart")
    pieces = _PARTS.split(text)  # text, inside, text, inside, …, text
    ranges = [_read_ranges(inside) for inside in pieces[1::2]]
    if len(ranges) > _MOST_RANGES:
        count = len(ranges)
        raise BadRange(
            f"has {count} ranges, but at most {_MOST_RANGES} are allowed", "write several entries"
        )
    count = math.prod(sum(run.count for run in runs) for runs in ranges)
    if count > MOST_NAMES:
        raise BadRange(
            f"stands for {count} names, but at most {MOST_NAMES} are allowed",
            "check whether it has a digit too many",
        )
    chosen = itertools.product(*(tuple(itertools.chain.from_iterable(runs)) for runs in ranges))
    return tuple(
        pieces[0]
        + "".join(number + after for number, after in zip(numbers, pieces[2::2], strict=True))
        for numbers in chosen
    )


def _has_loose_bracket(text: str) -> bool:
    return bool(re.search(r"[\[\]]", _PARTS.sub("", text)))


def _read_ranges(inside: str) -> list[_NumberRange]:
    return [_read_range(part.strip()) for part in inside.split(",")]


def _read_range(part: str) -> _NumberRange:
    match = _RANGE.fullmatch(part)
    if not match:
        problem = (
            f"contains `{part[:20]}`, which is neither a number nor two numbers with a dash "
            "between them"
        )
        raise BadRange(problem if part else "has an empty part in its range")
    first, last = match[1], match[2] or match[1]
    if int(first) > int(last):
        raise BadRange(f"runs backwards, from {first} to {last}", f"write [{last}-{first}]")
    width = len(first) if first.startswith("0") else 0
    padded_otherwise = (width and len(last) < width) or (
        last.startswith("0") and len(last) != len(first)
    )
    if padded_otherwise:
        raise BadRange(
            f"pads {first} and {last} with zeros differently",
            f"write [{first.zfill(len(last))}-{last.zfill(len(first))}]",
        )
    return _NumberRange(int(first), int(last), width)
