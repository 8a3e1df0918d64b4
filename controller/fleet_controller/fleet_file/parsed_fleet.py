"""Represents a fleet file while it is checked: its sound parts, and which layer (host entry, group
or defaults) sets a value for a host.
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
    """One host entry of the file together with the sections that it inherits settings from. The
    nearest layer is the entry itself, then its group, then the defaults.
    """

    path: KeyPath
    entry: Host
    behind: tuple[tuple[KeyPath, HostKeys], ...]

    def each(self) -> Iterator[tuple[KeyPath, HostKeys]]:
        """Yield every layer with its path, nearest first."""
        yield self.path, self.entry
        yield from self.behind

    def value(self, key: str) -> Any:
        """Return the value of `key` in the nearest layer that sets it, or None."""
        return next(
            (found for _, layer in self.each() if (found := getattr(layer, key)) is not None), None
        )

    def where(self, key: str) -> KeyPath:
        """Return the path of `key` in the nearest layer that sets it, or the entry's path if none
        does.
        """
        return next(
            ((*path, key) for path, layer in self.each() if getattr(layer, key) is not None),
            self.path,
        )

    def merged(self, key: str) -> dict[str, Any]:
        """Return the mappings at `key` of all layers merged into one. The nearest layer wins, and
        null removes an entry.
        """
        result: dict[str, Any] = {}
        for _, layer in reversed(list(self.each())):
            result.update(getattr(layer, key))
        return {name: value for name, value in result.items() if value is not None}

    def names(self) -> tuple[str, ...]:
        """Return the names of all hosts of the entry. Raises BadRange."""
        return expand(self.entry.name)

    def addresses(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return one address for each of `names`. A range in the address is expanded in step with
        the names, and `{name}` is replaced by the name. Raises BadRange.
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
            count, hosts = len(found), "1 host" if len(names) == 1 else f"{len(names)} hosts"
            problem = f"stands for {count} addresses, but `{self.entry.name}` stands for {hosts}"
            raise BadRange(
                problem,
                f"make both ranges the same size, or write `{PLACEHOLDER}` in place of the name",
            )
        return found


@dataclass(frozen=True, slots=True)
class ParsedFleet:
    """The readable part of a fleet file. Values of `fleet` at or below a path in `broken` are
    defaults or stand-ins, not what the user wrote.
    """

    document: Document
    fleet: FleetFile
    broken: frozenset[KeyPath] = frozenset()

    def layers(self) -> Iterator[Layers]:
        """Yield every sound host entry: first the entries of groups, then the entries without a
        group, both in file order.
        """
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
        """Yield every mapping that contains host settings, with its path."""
        yield ("defaults",), self.fleet.defaults
        for group, content in self.fleet.groups.items():
            yield ("groups", group), content
            yield from (
                (("groups", group, "hosts", place), entry)
                for place, entry in enumerate(content.hosts)
            )
        yield from ((("hosts", place), entry) for place, entry in enumerate(self.fleet.hosts))

    def is_sound(self, *paths: KeyPath) -> bool:
        """Return True if no broken value is at or above any of `paths`."""
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
        """Return a finding at the value of `path`, or at its key."""
        line, column = self.document.place(path, at_key=at_key)
        return Finding(
            code, severity, self.document.file, line, column, dotted(path), message, hint
        )

    def line(self, path: KeyPath) -> int:
        """Return the line of `path`."""
        return self.document.place(path)[0]

    def written(self, path: KeyPath) -> Mapping[str, Any]:
        """Return the mapping at `path` as it was written, or an empty mapping if there is none."""
        found = self.document.value_at(path, {})
        return found if isinstance(found, dict) else {}
