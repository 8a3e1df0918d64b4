"""Owns the question which NCCL variables SGLang sets itself for a server, by the table of
`fleet_knowledge.sglang`. Reads no job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_knowledge.release import Release, VersionRange
from fleet_knowledge.server_configuration import ServerConfiguration
from fleet_knowledge.sglang.environment_rules import DEFAULTS_WHEN_UNSET, VARIABLE_CHANGES

_ANY = VersionRange()


@dataclass(frozen=True, slots=True)
class SglangOverride:
    """SGLang writes `value` to `variable`: `always`, over the job's value too, or only where the
    job leaves it unset. `needs`: why.
    """

    variable: str
    value: str
    versions: VersionRange
    always: bool
    needs: str = ""


def find_sglang_overrides(
    variable: str, args: Mapping[str, Any], release: Release | None
) -> Iterator[SglangOverride]:
    """What SGLang (in `release`, None: in any version) writes to `variable` of a server with
    `args`; what overrides the job comes first.
    """
    asked = ServerConfiguration(args=args, release=release)
    for row in VARIABLE_CHANGES:
        if row.variable == variable and row.versions.contains(release) and row.when(asked):
            yield SglangOverride(variable, row.value, row.versions, True, row.why)
    if variable in DEFAULTS_WHEN_UNSET:
        yield SglangOverride(variable, DEFAULTS_WHEN_UNSET[variable], _ANY, False)
