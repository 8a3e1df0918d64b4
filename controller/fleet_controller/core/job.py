"""A job as the planner sees it: every default filled in, every list expanded, names as the server
knows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fleet_controller.yaml.findings import Finding
from fleet_protos.trial_types import (
    AttachedFile,
    EngineKind,
    EngineSpec,
    Measure,
    Workload,
)


@dataclass(frozen=True, slots=True)
class Level:
    """What a level changes in the engine. A value of None removes an argument or a variable. The
    keys of `simulation` are the fields of `Simulation`.
    """

    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    simulation: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostChoice:
    """Which hosts a job asks for. `every_host` False: each block goes to one of them. `share`: its
    trials may run next to others on a host.

    `part`: the part of a host that one of its trials takes, for the accounting of host time; 1
    unless it shares.
    """

    names: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    every_host: bool = True
    share: bool = False
    part: float = 1.0

    def to_json(self) -> str:
        """Return the choice as the store keeps it."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> HostChoice:
        """Read a text written by `to_json`. An empty text means that every trial stays on the host
        of its plan.
        """
        values = json.loads(text or "{}")
        return cls(**{**values, "names": tuple(values.get("names", ()))})

    def matching(self, known: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
        """Return the sorted names of the hosts in `known` (name → labels) that match."""
        return tuple(name for name in sorted(known) if self.matches(name, known[name]))

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether a host with that name and those labels matches."""
        return (not self.names or name in self.names) and self.labels.items() <= labels.items()


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """Which other hosts send the load. `hosts` without names and labels means all hosts that only
    send load; `shards`: in total, 0 means one for each host.
    """

    hosts: HostChoice = field(default_factory=HostChoice)
    shards: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A validated job. `factors` keep the order of the file; `gpus` None means that the parallel
    sizes of each variant decide; `files` are those that the workloads name.

    `places`: line and column of each dotted key of the file.
    """

    name: str
    engine: EngineSpec
    workloads: tuple[Workload, ...]
    measure: Measure = field(default_factory=Measure)
    factors: Mapping[str, Mapping[str, Level]] = field(default_factory=dict)
    exclude: tuple[Mapping[str, str], ...] = ()
    baseline: Mapping[str, str] = field(default_factory=dict)
    launches: int = 3
    margin: float = 0.02
    gpus: int | None = None
    priority: int = 0
    hosts: HostChoice = field(default_factory=HostChoice)
    load: LoadChoice | None = None
    files: tuple[AttachedFile, ...] = ()
    file: str = ""
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)

    def finding(self, code: str, severity: str, key: str, message: str, hint: str = "") -> Finding:
        """Return a finding at `key`, or at the nearest key above it that the file contains."""
        above = key
        while above and above not in self.places:
            above = above.rpartition("[" if above.endswith("]") else ".")[0]
        line, column = self.places.get(above, (1, 1) if self.file else (0, 0))
        return Finding(code, severity, self.file, line, column, key, message, hint)


def blocks_of(job: Job) -> int:
    """Return the number of blocks. An external server is not launched, so it gets one."""
    return 1 if job.engine.kind == EngineKind.EXTERNAL else job.launches
