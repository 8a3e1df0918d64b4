"""Describes a job as the planner sees it: every default is filled in, every list is expanded, and
names are those that the server knows.
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
    """The changes that a level makes to the engine. A value of None removes an argument or a
    variable. The keys of `simulation` are fields of `Simulation`.
    """

    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    simulation: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostChoice:
    """The hosts that a job asks for.

    - `every_host`: whether each matching host runs the job; if not, each block goes to one of them.
    - `share`: whether the job's trials may run next to other trials on a host.
    - `part`: the fraction of a host that one trial takes, for the accounting of host time; 1 unless
      trials share hosts.
    """

    names: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    every_host: bool = True
    share: bool = False
    part: float = 1.0

    def to_json(self) -> str:
        """Return the choice as the text that the store keeps."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> HostChoice:
        """Return the choice for a text written by `to_json`. An empty text means that every trial
        stays on the host of its plan.
        """
        values = json.loads(text or "{}")
        return cls(**{**values, "names": tuple(values.get("names", ()))})

    def matching(self, known: Mapping[str, Mapping[str, str]]) -> tuple[str, ...]:
        """Return the sorted names of the matching hosts. `known` maps the name of each host to its
        labels.
        """
        return tuple(name for name in sorted(known) if self.matches(name, known[name]))

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether a host with this name and these labels matches."""
        return (not self.names or name in self.names) and self.labels.items() <= labels.items()


@dataclass(frozen=True, slots=True)
class LoadChoice:
    """The choice of the hosts that send a job's load.

    - `hosts`: if it has neither names nor labels, all load-only hosts send load.
    - `shards`: the number of shards in total; 0 means one shard for each host.
    """

    hosts: HostChoice = field(default_factory=HostChoice)
    shards: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """A validated job.

    - `factors`: in the order of the file.
    - `gpus`: None if the parallel sizes of each variant determine the number.
    - `files`: the files that the workloads name.
    - `judge`: the metrics that get a verdict, for each workload whose file names them.
    - `places`: line and column of each dotted key of the file.
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
    judge: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    file: str = ""
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict, compare=False, repr=False)

    def finding(self, code: str, severity: str, key: str, message: str, hint: str = "") -> Finding:
        """Return a finding at `key`. If the file does not contain the key, the finding is at the
        nearest key above it.
        """
        above = key
        while above and above not in self.places:
            above = above.rpartition("[" if above.endswith("]") else ".")[0]
        line, column = self.places.get(above, (1, 1) if self.file else (0, 0))
        return Finding(code, severity, self.file, line, column, key, message, hint)


def blocks_of(job: Job) -> int:
    """Return the number of blocks. An external server is not launched, so its job has one block."""
    return 1 if job.engine.kind == EngineKind.EXTERNAL else job.launches
