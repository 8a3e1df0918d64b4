"""Owns which layer of a fleet file speaks for a host: defaults, its group, its own entry; and where
that stands. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_controller.fleet_file.fleet_models import FleetFile, Group, Host, HostKeys
from fleet_controller.fleet_file.name_ranges import BadRange, expand
from fleet_controller.yaml.document import Document
from fleet_controller.yaml.findings import ERROR, Finding
from fleet_controller.yaml.key_path import KeyPath, dotted

PLACEHOLDER = "{name}"


@dataclass(frozen=True, slots=True)
class Layers:
    """One entry of the file, a host or a range of them, with what stands behind it; the nearest
    layer is the first.
    """

    path: KeyPath
    entry: Host
    behind: tuple[tuple[KeyPath, HostKeys], ...]

    def each(self) -> Iterator[tuple[KeyPath, HostKeys]]:
        """Every layer with its path, the nearest first."""
        yield self.path, self.entry
        yield from self.behind

    def value(self, key: str) -> Any:
        """What the nearest layer says that says anything; None when none does."""
        return next(
            (found for _, layer in self.each() if (found := getattr(layer, key)) is not None), None
        )

    def where(self, key: str) -> KeyPath:
        """Where that stands, as the path of the key; the entry when no layer says it."""
        return next(
            ((*path, key) for path, layer in self.each() if getattr(layer, key) is not None),
            self.path,
        )

    def merged(self, key: str) -> dict[str, Any]:
        """A mapping, the layers laid over each other; null takes an entry away."""
        result: dict[str, Any] = {}
        for _, layer in reversed(list(self.each())):
            result.update(getattr(layer, key))
        return {name: value for name, value in result.items() if value is not None}

    def names(self) -> tuple[str, ...]:
        """All hosts that the entry stands for. Raises BadRange."""
        return expand(self.entry.name)

    def addresses(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """One for each of `names`: in step with a range of the address, or with the name put in.
        Raises BadRange.
        """
        written = self.value("address")
        if written is None:
            return names
        if PLACEHOLDER in written:
            return tuple(written.replace(PLACEHOLDER, name) for name in names)
        found = expand(written)
        if len(found) == 1:
            return found * len(names)
        if len(found) != len(names):
            problem = f"stands for {len(found)} addresses, and `{self.entry.name}` for {len(names)} host{'s' if len(names) > 1 else ''}"
            raise BadRange(
                problem, f"give both as many, or write `{PLACEHOLDER}` where the name goes"
            )
        return found


@dataclass(frozen=True, slots=True)
class ParsedFleet:
    """`fleet` holds what could be read; values at or below a path in `broken` are defaults or
    stand-ins, not the user's.
    """

    document: Document
    fleet: FleetFile
    broken: frozenset[KeyPath] = frozenset()

    def layers(self) -> Iterator[Layers]:
        """Every sound entry, in the order of the file: those of the groups, then those of none."""
        defaults: tuple[KeyPath, HostKeys] = (("defaults",), self.fleet.defaults)
        for group, content in self.fleet.groups.items():
            for place, entry in enumerate(content.hosts):
                path: KeyPath = ("groups", group, "hosts", place)
                if self.is_sound((*path, "name")):
                    yield Layers(path, entry, ((("groups", group), content), defaults))
        for place, entry in enumerate(self.fleet.hosts):
            if self.is_sound(("hosts", place, "name")):
                yield Layers(("hosts", place), entry, (defaults,))

    def blocks(self) -> Iterator[tuple[KeyPath, HostKeys | Group | Host]]:
        """Every mapping that holds keys of hosts, with its path."""
        yield ("defaults",), self.fleet.defaults
        for group, content in self.fleet.groups.items():
            yield ("groups", group), content
            yield from (
                (("groups", group, "hosts", place), entry)
                for place, entry in enumerate(content.hosts)
            )
        yield from ((("hosts", place), entry) for place, entry in enumerate(self.fleet.hosts))

    def is_sound(self, *paths: KeyPath) -> bool:
        """True when nothing at or above any of `paths` is broken."""
        return not any(path[: len(bad)] == bad for path in paths for bad in self.broken)

    def finding(
        self,
        code: str,
        path: KeyPath,
        message: str,
        hint: str = "",
        *,
        severity: str = ERROR,
        at_key: bool = False,
    ) -> Finding:
        """A finding at the value of `path`, or at its key."""
        line, column = self.document.place(path, at_key=at_key)
        return Finding(
            code, severity, self.document.file, line, column, dotted(path), message, hint
        )

    def line(self, path: KeyPath) -> int:
        """The line in which `path` stands."""
        return self.document.place(path)[0]

    def written(self, path: KeyPath) -> Mapping[str, Any]:
        """The mapping at `path` as it was written; empty when there is none."""
        found = self.document.value_at(path, {})
        return found if isinstance(found, dict) else {}
