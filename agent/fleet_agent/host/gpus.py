"""Owns the ways by which the agent sees its GPUs: through NVML, or out of a recording. Changes no
setting of a GPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fleet_knowledge.host.gpu import Gpu, GpuProcess, gpu_from
from fleet_protos.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GpuReading:
    """All GPUs at one moment. `fault`: what the driver answered instead, empty when it answered or
    is not installed.
    """

    gpus: tuple[Gpu, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    fault: str = ""
    failure_class: str = ""

    def select(self, indices: tuple[int, ...]) -> tuple[Gpu, ...]:
        """The GPUs with these indices, as far as they are there."""
        return tuple(gpu for gpu in self.gpus if gpu.index in indices)


class Gpus(Protocol):
    """A source of readings. Both methods block."""

    is_recorded: bool  # its GPUs stand for those that a simulated server claims, too

    def read(self) -> GpuReading:
        """Everything that is known now. Never raises: what cannot be had is absent, and a broken
        driver is a `fault`.
        """
        ...

    def topology_text(self) -> str:
        """As `nvidia-smi topo -m` prints it; empty when it cannot be had."""
        ...


class RecordedGpus:
    """GPUs out of a JSON file that is read anew each time: {"gpus": [{"index": 0, …}], "processes":
    [{"pid": 1, …}], "topology": "…"}.

    Field names are those of `fleet_knowledge.host.gpu`; "fault" and "failure_class" stand for a
    driver that does not answer.
    """

    is_recorded = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> GpuReading:
        """What the file holds now. Raises ConfigError when it is not such a file."""
        document = self._document()
        try:
            gpus = tuple(gpu_from(facts) for facts in document.get("gpus", ()))
            processes = tuple(GpuProcess(**facts) for facts in document.get("processes", ()))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._path} is no recording of GPUs: {error}", "see docs/host.md for its form"
            ) from error
        return GpuReading(
            gpus, processes, str(document.get("fault", "")), str(document.get("failure_class", ""))
        )

    def topology_text(self) -> str:
        """The table in the file."""
        return str(self._document().get("topology", ""))

    def _document(self) -> Mapping[str, Any]:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot read the recorded GPUs in {self._path}: {error}",
                "see docs/host.md for its form",
            ) from error
        if not isinstance(document, dict):
            raise ConfigError(
                f"{self._path} is no recording of GPUs: it holds no object",
                "see docs/host.md for its form",
            )
        return document
