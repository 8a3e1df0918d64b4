"""Defines how NCCL reads the text of a variable (numbers, topology levels, names, lists), and what
is wrong with a value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from fleet_knowledge.release import Release, VersionRange

_ANY = VersionRange()
_NUMBER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9]\d*)")
_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")


class InvalidValueEffect(Enum):
    """The things that NCCL may do with an invalid value."""

    REFUSED = "refuses"  # creating the communicator fails: the server dies
    IGNORED = "ignores"  # as if the variable were not set
    MISREAD = "misreads"  # NCCL reads another value
    ADJUSTED = "adjusts"  # NCCL uses the nearest legal value
    DISCOURAGED = "discourages"  # works, but means something else in other versions


@dataclass(frozen=True, slots=True)
class ValueFault:
    """A fault of a value: the problem, the versions that have it, and what to write instead."""

    outcome: InvalidValueEffect
    problem: str
    cure: str = ""
    versions: VersionRange = _ANY


class ValueType(Protocol):
    """The legal values of a variable; `str()` describes them to users."""

    def fault(self, value: str, release: Release | None) -> ValueFault | None:
        """Return the first fault of `value` in `release`. If the release is None, a value is legal
        if some version accepts it.
        """
        ...

    def means_same(self, asked: str, logged: str) -> bool:
        """Return whether `logged`, the text in NCCL's log, means the same as the job's value
        `asked`.
        """
        ...


def read_number(text: str) -> int | None:
    """Return the number at the start of a text, as C's strtoll with base 0 reads it. It may be
    hexadecimal or octal. Return None if there is no number.
    """
    found = _NUMBER.match(text)
    if not found:
        return None
    digits = found[2]
    number = int(digits, 16 if digits[1:2] in ("x", "X") else 8 if digits.startswith("0") else 10)
    return -number if found[1] == "-" else number


def _is_whole_number(text: str) -> bool:
    found = _NUMBER.match(text)
    return found is not None and not text[found.end() :].strip()


@dataclass(frozen=True, slots=True)
class NumberValue:
    """A whole number: one of `choices`, or between `low` and `high`.

    `limits` gives the upper limits of versions in which they differ from `high`.
    """

    choices: tuple[int, ...] = ()
    low: int | None = None
    high: int | None = None
    multiple_of: int = 1
    unit: str = ""
    limits: tuple[tuple[VersionRange, int], ...] = ()

    def fault(self, value: str, release: Release | None) -> ValueFault | None:
        """Return the first fault. NCCL reads text without a number as 0 and ignores a unit: `16M`
        is 16.
        """
        number = read_number(value)
        if number is None:
            return ValueFault(
                InvalidValueEffect.MISREAD,
                f"`{value}` is not a number: NCCL reads 0",
                f"write {self}",
            )
        if not _is_whole_number(value):
            return ValueFault(
                InvalidValueEffect.MISREAD,
                f"NCCL reads only the number at its start: {number}",
                f"write {self}",
            )
        return self._out_of_range(number, release)

    def _out_of_range(self, number: int, release: Release | None) -> ValueFault | None:
        if self.choices and number not in self.choices:
            return ValueFault(
                InvalidValueEffect.ADJUSTED,
                f"{number} is not one of {_join_alternatives(self.choices)}",
                f"write {self}",
            )
        if self.low is not None and number < self.low:
            return ValueFault(
                InvalidValueEffect.ADJUSTED, f"{number} is below {self.low}", f"write {self}"
            )
        if number % self.multiple_of:
            return ValueFault(
                InvalidValueEffect.ADJUSTED,
                f"{number} is not a multiple of {self.multiple_of}",
                f"write {self}",
            )
        return self._too_high(number, release)

    def _too_high(self, number: int, release: Release | None) -> ValueFault | None:
        known = [(versions, high) for versions, high in self.limits if versions.contains(release)]
        high = max((high for _, high in known), default=self.high)
        if high is not None and number > high:
            return ValueFault(
                InvalidValueEffect.ADJUSTED, f"{number} is above {high}", f"write {self}"
            )
        narrower = [(versions, limit) for versions, limit in known if number > limit]
        return (
            ValueFault(
                InvalidValueEffect.ADJUSTED,
                f"{number} is above {narrower[0][1]}",
                f"write {self}",
                narrower[0][0],
            )
            if narrower
            else None
        )

    def means_same(self, asked: str, logged: str) -> bool:
        """Compare the numbers, because NCCL logs the number that it read, in decimal."""
        return read_number(asked) == read_number(logged)

    def __str__(self) -> str:
        if self.choices:
            return _join_alternatives(self.choices)
        unit = f" {self.unit}" if self.unit else ""
        highest = [high for _, high in self.limits] + ([self.high] if self.high is not None else [])
        if highest:
            return f"{self.low or 0} to {max(highest)}{unit}"
        return f"a number{' of' + unit if unit else ''}" + (
            f" from {self.low}" if self.low is not None else ""
        )


def _join_alternatives(words: tuple[object, ...]) -> str:
    texts = [str(word) for word in words]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} or {texts[-1]}"


@dataclass(frozen=True, slots=True)
class LevelValue:
    """A distance in the topology by its name (NCCL calls it a level).

    The old numbers still work, but their meaning differs between versions.
    """

    names: tuple[str, ...]
    undocumented: tuple[str, ...] = (
        "NVL",
        "NVB",
        "C2C",
        "P2C",
        "PXN",
    )  # accepted by NCCL's source, but undocumented

    def fault(self, value: str, release: Release | None) -> ValueFault | None:
        """Return the fault of an unknown name or a number. Case matters: `sys` is not a
        legal name.
        """
        if value in self.names or value in self.undocumented:
            return None
        if value[:1].isdigit():
            name = self._level_name(value)
            return ValueFault(
                InvalidValueEffect.DISCOURAGED,
                f"the number {value} means {name}, but numbers changed between versions",
                f"write {name}",
            )
        if value.upper() in self.names:
            return ValueFault(
                InvalidValueEffect.IGNORED,
                "levels are written in capitals",
                f"write {value.upper()}",
            )
        return ValueFault(InvalidValueEffect.IGNORED, f"`{value}` is not a level", f"write {self}")

    def means_same(self, asked: str, logged: str) -> bool:
        """Compare the names, because NCCL logs the name that a number stands for."""
        return self._level_name(asked) == self._level_name(logged)

    def _level_name(self, value: str) -> str:
        number = read_number(value) if value[:1].isdigit() else None
        return value if number is None else _OLD_LEVELS[min(number, len(_OLD_LEVELS) - 1)]

    def __str__(self) -> str:
        return _join_alternatives(self.names)


@dataclass(frozen=True, slots=True)
class NamesValue:
    """One of several words, or a list of them if there is a `separator`.

    If `excludes` is set, a leading `^` excludes the words.
    """

    words: tuple[str, ...]
    separator: str = ""
    excludes: bool = False
    numbers: tuple[int, ...] = ()
    cased: bool = False
    outcome: InvalidValueEffect = InvalidValueEffect.IGNORED

    def fault(self, value: str, release: Release | None) -> ValueFault | None:
        """Return the fault of the first unknown word. Its text lists the known words."""
        if self.numbers and read_number(value) in self.numbers:
            return None
        rest = value[1:] if self.excludes and value.startswith("^") else value
        known = self.words if self.cased else tuple(word.upper() for word in self.words)
        for word in rest.split(self.separator) if self.separator else (rest,):
            if (word if self.cased else word.upper()) not in known:
                return ValueFault(
                    self.outcome,
                    f"`{word}` is not one of {_join_alternatives(self.words)}",
                    f"write {self}",
                )
        return None

    def means_same(self, asked: str, logged: str) -> bool:
        """Compare the words without case, because NCCL's log repeats the word."""
        return asked.strip().upper() == logged.strip().upper()

    def __str__(self) -> str:
        return _join_alternatives((*self.words, *self.numbers)) + (
            f", several joined by `{self.separator}`" if self.separator else ""
        )


@dataclass(frozen=True, slots=True)
class PrefixesValue:
    """A list of prefixes of names. A leading `^` excludes them; a `=` after it matches
    whole names.
    """

    noun: str
    fields: int = 1  # parts of an entry, separated by `:`

    def fault(self, value: str, release: Release | None) -> ValueFault | None:
        """Return the first fault. A blank or a `^` inside the list becomes part of a name, which
        then matches nothing.
        """
        rest = value.removeprefix("^").removeprefix("=")
        if not rest:
            return ValueFault(
                InvalidValueEffect.IGNORED, f"it names no {self.noun}", f"write {self}"
            )
        for entry in rest.split(","):
            if entry != entry.strip() or " " in entry:
                return ValueFault(
                    InvalidValueEffect.MISREAD,
                    "NCCL takes blanks as part of a name",
                    "separate names by commas without blanks",
                )
            if entry.startswith(("^", "=")):
                return ValueFault(
                    InvalidValueEffect.MISREAD,
                    f"`{entry[0]}` only works at the start, for the whole list",
                    f"write {entry[0]}a,b",
                )
            if not entry:
                return ValueFault(
                    InvalidValueEffect.MISREAD,
                    "an empty name matches everything",
                    "remove the extra comma",
                )
            if entry.count(":") >= self.fields:
                return ValueFault(
                    InvalidValueEffect.MISREAD, f"`{entry}` has too many `:`", f"write {self}"
                )
        return None

    def means_same(self, asked: str, logged: str) -> bool:
        """Compare the texts, because NCCL's log repeats the list."""
        return asked.strip() == logged.strip()

    def __str__(self) -> str:
        port = "[:PORT]" if self.fields > 1 else ""
        return f"{self.noun} prefixes: `a{port},b{port}`, `^a` excludes, `=a` is exact"


@dataclass(frozen=True, slots=True)
class FilePathValue:
    """A path, in which `~` is not expanded. A plug-in may also be given by a suffix of its
    library's name.
    """

    plugin: bool = False

    def fault(self, value: str, release: Release | None) -> ValueFault | None:
        """Return the fault of a path that begins with `~`, which NCCL takes as the name of a
        folder.
        """
        return (
            ValueFault(InvalidValueEffect.IGNORED, "`~` is not expanded", "write the absolute path")
            if value.startswith("~")
            else None
        )

    def means_same(self, asked: str, logged: str) -> bool:
        """Compare paths. A plug-in is logged by its library's name: `foo` as
        `libnccl-tuner-foo.so`.
        """
        return asked.strip() == logged.strip() or (self.plugin and f"-{asked.strip()}.so" in logged)

    def __str__(self) -> str:
        return "a library's path or suffix, or `none`" if self.plugin else "a path"


@dataclass(frozen=True, slots=True)
class TextValue:
    """Any text; `shape` describes it."""

    shape: str = "text"

    def fault(self, value: str, release: Release | None) -> ValueFault | None:
        """Return None, because no text is known to be wrong."""
        return None

    def means_same(self, asked: str, logged: str) -> bool:
        """Compare the texts, because NCCL's log repeats the text."""
        return asked.strip() == logged.strip()

    def __str__(self) -> str:
        return self.shape
