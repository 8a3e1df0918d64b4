"""Knows the options of SGLang's server by version: their names, kinds and defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from fleet_knowledge.release import Release
from fleet_knowledge.sglang_releases import NEWEST_SGLANG_READ, Certainty, certainty_of_presence

_LONGEST_NAME = 80
_SHORTEST_BEGINNING = 4


@dataclass(frozen=True, slots=True)
class ServerArgument:
    """Describes an option of SGLang's server.

    `kind` is a letter: f for a flag, n for a flag with a `--no-` form, v for one value, o for no or
    one value, m for several values, x if the kind changed between versions. `first` and `last` are
    the first and last inspected release that has the option; `last` is empty if the newest
    inspected release has it. `default` is the option's default if it is the same in all these
    releases, else empty.
    """

    name: str
    first: str
    last: str
    kind: str
    default: str
    spellings: tuple[str, ...]

    def certainty_in(self, release: Release | None) -> Certainty:
        """Return how certain it is that a version has the option."""
        return certainty_of_presence(self.first, self.last, _table().read, release)


@dataclass(frozen=True, slots=True)
class ResolvedName:
    """Says which option an argument's name means.

    `shortened` says that only the beginning of the option's name was written. `others` are further
    options that begin in the same way in some version.
    """

    name: str
    known: bool
    shortened: bool = False
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Table:
    read: tuple[Release, ...]
    arguments: Mapping[str, ServerArgument]
    spellings: Mapping[str, str]


@cache
def _table() -> _Table:
    lines = (
        files(__package__).joinpath("server_arguments.txt").read_text(encoding="utf-8").splitlines()
    )
    [read] = [
        line.removeprefix("# read: ").split() for line in lines if line.startswith("# read: ")
    ]
    arguments = {
        entry.name: entry
        for line in lines
        if line and not line.startswith("#")
        for entry in [_argument(line)]
    }
    spellings = {
        spelling: entry.name
        for entry in arguments.values()
        for spelling in (entry.name, *entry.spellings)
    }
    return _Table(
        tuple(release for text in read if (release := Release.parse(text))), arguments, spellings
    )


def _argument(line: str) -> ServerArgument:
    name, first, last, kind, *rest = line.split()
    default = rest.pop(0)[1:] if rest and rest[0].startswith("=") else ""
    return ServerArgument(name, first, "" if last == "-" else last, kind, default, tuple(rest))


def known_arguments() -> Mapping[str, ServerArgument]:
    """Return all options of all releases read, by SGLang's own name."""
    return _table().arguments


def argument_aliases() -> Mapping[str, str]:
    """Return a map from each other spelling of an option to SGLang's own name."""
    return {spelling: name for spelling, name in _table().spellings.items() if spelling != name}


def resolve_name(written: str, release: Release | None = None) -> ResolvedName:
    """Return SGLang's own name for an argument's name as it was written.

    Dashes become underscores, another spelling becomes its option, and a unique beginning becomes
    the whole name. argparse accepts a beginning that only one option has, so a beginning that is
    unique in one version may be ambiguous in a later version. If a version is given, it decides
    what a beginning means. Otherwise the newest inspected version decides in which the beginning
    was unique, provided that the option still exists.
    """
    name = written.strip().lstrip("-").replace("-", "_")
    known = _table().spellings.get(name)
    if known:
        return ResolvedName(known, known=True)
    if len(name) < _SHORTEST_BEGINNING:
        return ResolvedName(name, known=False)
    begun = {entry.name for spelling, entry in _spellings() if spelling.startswith(name)}
    if not begun:
        return ResolvedName(name, known=False)
    meant = _option_meant(begun, release)
    if not meant:
        return ResolvedName(name, known=False, others=tuple(sorted(begun)))
    others = {other for other in begun if known_arguments()[other].certainty_in(release)}
    return ResolvedName(meant, known=True, shortened=True, others=tuple(sorted(others - {meant})))


def _spellings() -> Iterable[tuple[str, ServerArgument]]:
    table = _table()
    return ((spelling, table.arguments[name]) for spelling, name in table.spellings.items())


def _option_meant(begun: set[str], release: Release | None) -> str:
    """Return the one option that a beginning stands for. Return an empty text if the beginning is
    unique in no version.
    """
    for version in (release,) if release else reversed(_table().read):
        here = [
            name for name in begun if known_arguments()[name].certainty_in(version) == Certainty.YES
        ]
        if len(here) == 1 and (
            release or known_arguments()[here[0]].certainty_in(_table().read[-1])
        ):
            return here[0]
    return ""


def nearest_argument(name: str) -> str:
    """Return the known option nearest to `name`, or an empty text."""
    known = _table().spellings
    found = (
        get_close_matches(name, list(known), n=1, cutoff=0.75) if len(name) <= _LONGEST_NAME else []
    )
    return known[found[0]] if found else ""


def is_negatable(name: str) -> bool:
    """Return whether the newest release read has a `--no-` form of the option, so that false has an
    effect.
    """
    entry = known_arguments().get(name)
    return entry is not None and entry.kind == "n" and not entry.last


def newest_release() -> Release:
    """Return the newest release that was read."""
    return _table().read[-1]


__all__ = [
    "NEWEST_SGLANG_READ",
    "ResolvedName",
    "ServerArgument",
    "argument_aliases",
    "is_negatable",
    "known_arguments",
    "nearest_argument",
    "newest_release",
    "resolve_name",
]
