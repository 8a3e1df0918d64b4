"""Owns the question which NCCL variables SGLang sets itself for a server, by the table of `fleet_knowledge.sglang`. Reads no job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_knowledge.release import Between, Release
from fleet_knowledge.server_configuration import Configuration
from fleet_knowledge.sglang.environment_rules import CHANGES, WHEN_UNSET

_ANY = Between()


@dataclass(frozen=True, slots=True)
class Override:
    """SGLang writes `value` to `variable`: `always`, over the job's value too, or only where the job leaves it unset. `needs`: why."""

    variable: str
    value: str
    versions: Between
    always: bool
    needs: str = ""


def overrides_of(variable: str, args: Mapping[str, Any], release: Release | None) -> Iterator[Override]:
    """What SGLang (in `release`, None: in any version) writes to `variable` of a server with `args`; what overrides the job comes first."""
    asked = Configuration(args=args, release=release)
    for row in CHANGES:
        if row.variable == variable and row.versions.holds(release) and row.when(asked):
            yield Override(variable, row.value, row.versions, True, row.why)
    if variable in WHEN_UNSET:
        yield Override(variable, WHEN_UNSET[variable], _ANY, False)
