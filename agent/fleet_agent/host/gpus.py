"""Defines the interface to the host's GPUs, and an implementation that reads a recorded state."""

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
    """The state of all GPUs and their processes at one moment.

    `fault` is the driver's error if it did not answer. It is empty if the driver answered or is not
    installed.
    """

    gpus: tuple[Gpu, ...] = ()
    processes: tuple[GpuProcess, ...] = ()
    fault: str = ""
    failure_class: str = ""

    def select(self, indices: tuple[int, ...]) -> tuple[Gpu, ...]:
        """Return the GPUs with these indices. Indices without a GPU are ignored."""
        return tuple(gpu for gpu in self.gpus if gpu.index in indices)


class Gpus(Protocol):
    """Reads the state of the host's GPUs. Both methods block."""

    is_recorded: bool  # True: they also stand for the GPUs of simulated servers

    def read(self) -> GpuReading:
        """Read the present state of all GPUs.

        Facts that cannot be read are absent. If the driver does not answer, `fault` is its error.
        """
        ...

    def topology_text(self) -> str:
        """Return the table of `nvidia-smi topo -m`. Empty if it cannot be read."""
        ...


class RecordedGpus:
    """Reads the GPUs from a JSON file instead of the driver. Each reading reads the file again.

    The file has the form {"gpus": [{"index": 0, …}], "processes": [{"pid": 1, …}], "topology": "…"}
    with the field names of `fleet_knowledge.host.gpu`. The keys "fault" and "failure_class"
    simulate a driver that does not answer.
    """

    is_recorded = True

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> GpuReading:
        """Read the file. Raises ConfigError if it is missing or does not have the right form."""
        document = self._document()
        try:
            gpus = tuple(gpu_from(facts) for facts in document.get("gpus", ()))
            processes = tuple(GpuProcess(**facts) for facts in document.get("processes", ()))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{self._path} is not a recording of GPUs: {error}",
                "see docs/host.md for the form",
            ) from error
        return GpuReading(
            gpus, processes, str(document.get("fault", "")), str(document.get("failure_class", ""))
        )

    def topology_text(self) -> str:
        """Return the topology table of the file."""
        return str(self._document().get("topology", ""))

    def _document(self) -> Mapping[str, Any]:
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot read the recorded GPUs in {self._path}: {error}",
                "see docs/host.md for the form",
            ) from error
        if not isinstance(document, dict):
            raise ConfigError(
                f"{self._path} is not a recording of GPUs: it is not a JSON object",
                "see docs/host.md for the form",
            )
        return document
