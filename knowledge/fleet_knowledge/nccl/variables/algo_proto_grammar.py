"""Parses NCCL_ALGO and NCCL_PROTO by version. Before 2.24 they are plain lists; from then on the
form is `function:list;...`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from fleet_knowledge.nccl.variables.value_types import InvalidValueEffect, ValueFault
from fleet_knowledge.release import Release, VersionRange

FUNCTIONS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce")
"""The collectives that a choice can apply to, the most important for an inference server first."""

ALGORITHMS: Mapping[str, VersionRange] = {
    "Ring": VersionRange("2.5"),
    "Tree": VersionRange("2.5"),
    "Collnet": VersionRange("2.5", "2.13.99"),
    "CollnetChain": VersionRange("2.14"),
    "CollnetDirect": VersionRange("2.14"),
    "NVLS": VersionRange("2.17"),
    "NVLSTree": VersionRange("2.18"),
    "PAT": VersionRange("2.23"),
}
PROTOCOLS: Mapping[str, VersionRange] = {
    "LL": VersionRange("2.5"),
    "LL128": VersionRange("2.5"),
    "Simple": VersionRange("2.5"),
}
FUNCTION_LISTS = VersionRange("2.24")
"""Versions that read `function:list;…`, refuse unknown words and no longer fall back to Ring."""

# Which algorithm is implemented for which collective (src/graph/tuning.cc, 2.18 - 2.30): all but
# PAT for AllReduce, Ring for all collectives, and these for AllGather and ReduceScatter
_GATHERS = ("ring", "nvls", "collnetdirect", "pat")


@dataclass(frozen=True, slots=True)
class AlgoProtoEntry:
    """One entry of NCCL_ALGO or NCCL_PROTO.

    `function` is the collective that the entry is for; empty means all. `excludes` says whether the
    entry forbids its words or allows them.
    """

    function: str
    excludes: bool
    words: tuple[str, ...]


def parse_entries(value: str) -> Iterator[AlgoProtoEntry]:
    """Yield the entries of a value such as `a,b;allreduce:^c`, with the words as written."""
    for entry in value.split(";"):
        function, colon, listed = entry.partition(":")
        if not colon:
            function, listed = "", entry
        yield AlgoProtoEntry(
            function, listed.startswith("^"), tuple(listed.removeprefix("^").split(","))
        )


@dataclass(frozen=True, slots=True)
class AlgoProtoValue:
    """The legal texts of NCCL_ALGO or of NCCL_PROTO."""

    words: Mapping[str, VersionRange]
    # before 2.24, a list without a known word leaves no protocol at all, but leaves the algorithms
    # Ring and Tree
    empty_is_fatal: bool

    def fault(self, value: str, release: Release | None) -> ValueFault | None:
        """Return the first fault. Unknown words come before grammar that only some
        versions accept.
        """
        listed = tuple(parse_entries(value))
        return next(
            (
                fault
                for check in (self._unknown_words, self._grammar_faults, self._version_faults)
                for fault in check(listed, release)
                if fault
            ),
            None,
        )

    def _unknown_words(
        self, listed: tuple[AlgoProtoEntry, ...], release: Release | None
    ) -> Iterator[ValueFault]:
        known = {word.lower() for word in self.words}
        functions = {function.lower() for function in FUNCTIONS}
        for part in listed:
            if part.function and part.function.lower() not in functions:
                yield ValueFault(
                    InvalidValueEffect.REFUSED,
                    f"`{part.function}` is not a collective",
                    f"write one of {', '.join(FUNCTIONS)}",
                )
            for word in part.words:
                if word.lower() not in known:
                    yield self._unknown_word(word, release)

    def _unknown_word(self, word: str, release: Release | None) -> ValueFault:
        near = get_close_matches(
            word.strip().lower(), [name.lower() for name in self.words], n=1, cutoff=0.5
        )
        spelled = {name.lower(): name for name in self.words}
        cure = (
            f"did you mean {spelled[near[0]]}?" if near else f"write one of {', '.join(self.words)}"
        )
        refused = release is None or FUNCTION_LISTS.contains(release) or self.empty_is_fatal
        return ValueFault(
            InvalidValueEffect.REFUSED if refused else InvalidValueEffect.IGNORED,
            f"`{word}` is not one of {', '.join(self.words)}",
            cure,
        )

    def _grammar_faults(
        self, listed: tuple[AlgoProtoEntry, ...], release: Release | None
    ) -> Iterator[ValueFault]:
        if any(not part.function for part in listed[1:]):
            yield ValueFault(
                InvalidValueEffect.REFUSED,
                "every entry after the first needs its collective",
                "write `ring;allreduce:tree`",
                FUNCTION_LISTS,
            )
        if any(part.function for part in listed) or len(listed) > 1:
            fault = ValueFault(
                InvalidValueEffect.MISREAD,
                "NCCL reads `collective:list` from 2.24 on",
                "write a plain list",
                VersionRange("", "2.23.99"),
            )
            if release is not None and not FUNCTION_LISTS.contains(release):
                yield fault

    def _version_faults(
        self, listed: tuple[AlgoProtoEntry, ...], release: Release | None
    ) -> Iterator[ValueFault]:
        spelled = {name.lower(): name for name in self.words}
        for word in (word for part in listed for word in part.words):
            versions = self.words[spelled[word.lower()]]
            if release is not None and not versions.contains(release):
                refused = FUNCTION_LISTS.contains(release)
                yield ValueFault(
                    InvalidValueEffect.REFUSED if refused else InvalidValueEffect.IGNORED,
                    f"{spelled[word.lower()]} exists {versions}, not in {release}",
                )

    def means_same(self, asked: str, logged: str) -> bool:
        """Compare the texts without case, because NCCL's log repeats the text."""
        return asked.strip().lower() == logged.strip().lower()

    def __str__(self) -> str:
        return f"{', '.join(self.words)}; lists, `^` excludes; from 2.24 `allreduce:…;…`"


def allowed_words(value: str, function: str, words: Mapping[str, VersionRange]) -> frozenset[str]:
    """Return the words that `value` still allows for a collective, in lower case."""
    every = frozenset(word.lower() for word in words)
    left = every
    for part in parse_entries(value):
        if not part.function or part.function.lower() == function.lower():
            named = frozenset(word.strip().lower() for word in part.words)
            left = every - named if part.excludes else every & named
    return left


def collectives_without_algorithm(value: str) -> tuple[str, ...]:
    """Return the collectives for which NCCL_ALGO=`value` allows no implemented algorithm.

    From 2.24 on, the first call of such a collective fails.
    """
    return tuple(
        function
        for function in FUNCTIONS
        if not any(
            _has_implementation(word, function)
            for word in allowed_words(value, function, ALGORITHMS)
        )
    )


def _has_implementation(algorithm: str, function: str) -> bool:
    if function == "AllReduce":
        return algorithm != "pat"
    return (
        algorithm in _GATHERS if function in ("AllGather", "ReduceScatter") else algorithm == "ring"
    )
