"""Reads the host's fingerprint: stable facts, which identify its conditions, and volatile facts.

The identity is a digest of the stable facts alone, so two readings of an unchanged host agree.
Temperature, clocks, used memory and an idle GPU's PCIe generation are volatile: they are recorded
but are not part of the identity.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet_agent.host import sysfs
from fleet_agent.host.gpus import Gpus
from fleet_knowledge.host.gpu import stable_facts, volatile_facts
from fleet_knowledge.host.gpu_comparison import least_values
from fleet_knowledge.host.topology import read_topology


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Holds facts about a host by name. The `stable` facts make up the identity of the host. The
    `volatile` facts change while the host runs.
    """

    stable: Mapping[str, str]
    volatile: Mapping[str, str]

    @property
    def identity(self) -> str:
        """The digest of the stable facts, 16 hexadecimal digits."""
        return hashlib.sha256(json.dumps(dict(self.stable), sort_keys=True).encode()).hexdigest()[
            :16
        ]

    def facts(self) -> dict[str, str]:
        """Return all facts in the form in which an event carries them.

        A stable fact keeps its name. A volatile fact gets the name `now.NAME`. The fact `identity`
        is added.
        """
        return (
            {"identity": self.identity}
            | dict(self.stable)
            | {f"now.{name}": value for name, value in self.volatile.items()}
        )


def read_fingerprint(gpus: Gpus, topology_text: str = "", root: Path = Path("/")) -> Fingerprint:
    """Read the fingerprint of this host from the kernel's files and NVML. This blocks."""
    reading = gpus.read()
    facts = (
        sysfs.kernel_facts(root)
        | {"python": platform.python_version()}
        | stable_facts(reading.gpus)
        | _topology(topology_text)
    )
    if reading.gpus:
        facts |= {"gpus": str(len(reading.gpus))} | {
            f"least_{name}": str(value) for name, value in least_values(reading.gpus).items()
        }
    if reading.fault:
        facts["gpu_fault"] = reading.fault
    return Fingerprint(facts, volatile_facts(reading.gpus) | _load_average(root))


def _topology(text: str) -> dict[str, str]:
    found = read_topology(text)
    if not found.gpus:
        return {}
    return {
        "topology": found.kind,
        "topology_digest": found.digest,
        "topology_numa": " ".join(map(str, found.numa.values())),
    }


def _load_average(root: Path) -> dict[str, str]:
    average = sysfs.read_text(root / "proc/loadavg").split(" ")[0]
    return {"load_average": average} if average else {}
