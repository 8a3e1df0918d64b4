"""Defines a row of NCCL's variable table: the legal values of a variable, its defaults, and when
NCCL reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fleet_knowledge.nccl.variables.value_types import ValueFault, ValueType
from fleet_knowledge.release import Release, VersionRange

_ANY = VersionRange()
NEVER = VersionRange("1", "1")
"""Matches no version: NCCL reads the variable without naming it in its log."""


@dataclass(frozen=True, slots=True)
class NcclVariable:
    """A variable of NCCL or RCCL.

    `logged` holds the versions that name the variable in their INFO log when they read it.
    `read_when` completes "read when ..." for a variable that not every launch reads.
    """

    name: str
    values: ValueType
    meaning: str
    default: str = ""  # as the job would write it; empty: none, or chosen by NCCL for the platform
    defaults: tuple[
        tuple[VersionRange, str], ...
    ] = ()  # where it differs by version, instead of `default`
    exists: VersionRange = _ANY
    deprecated: VersionRange | None = None
    replaced_by: str = ""
    always_read: bool = False  # NCCL reads and logs it in any launch on two GPUs of one host
    read_when: str = ""
    logged: VersionRange = _ANY
    note: str = ""
    source: str = "NCCL environment documentation; src/ 2.18 - 2.30"

    def fault(self, value: str, release: Release | None = None) -> ValueFault | None:
        """Return what is wrong with `value` in `release`.

        Without a release, return only a fault that every version has, or a fault that names its
        versions.
        """
        return None if value == "" else self.values.fault(value, release)

    def default_in(self, release: Release | None) -> Iterator[tuple[VersionRange, str]]:
        """Return the defaults that hold in `release`, each with its versions. If the release is
        unknown, return all defaults.
        """
        rows = self.defaults or (((_ANY, self.default),) if self.default else ())
        return (row for row in rows if row[0].contains(release))

    def equals_default(self, value: str, release: Release | None = None) -> VersionRange | None:
        """Return the versions that have `value` as the default; None if no version has."""
        return next(
            (
                versions
                for versions, default in self.default_in(release)
                if self.values.means_same(value, default)
            ),
            None,
        )

    @property
    def never_logged(self) -> bool:
        """Return whether NCCL reads the variable without naming it in its log."""
        return self.logged == NEVER


def describe_versions(versions: VersionRange) -> str:
    """Return the range in words; an end such as 2.24.99 becomes `before 2.25`."""
    last = Release.parse(versions.last)
    if last is None or last.numbers[-1] != 99:
        return str(versions)
    numbers = last.numbers[:-1]
    before = ".".join(map(str, (*numbers[:-1], numbers[-1] + 1)))
    return f"{versions.first} to before {before}" if versions.first else f"before {before}"
