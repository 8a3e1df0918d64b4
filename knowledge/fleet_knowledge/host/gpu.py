"""Defines the facts about a GPU and about a process on it. They come from NVML, nvidia-smi or a
recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

STABLE = (
    "name",
    "memory_mib",
    "power_limit_w",
    "ecc",
    "mig",
    "persistence",
    "sm_clock_max_mhz",
    "memory_clock_max_mhz",
    "driver",
    "vbios",
    "nvlinks",
    "pcie_width",
    "pcie_width_max",
    "pcie_generation_max",
    "numa",
    "fabric",
)
VOLATILE = (
    "memory_used_mib",
    "pcie_generation",
    "temperature_c",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "power_w",
    "utilisation_percent",
    "slowed_by",
    "uncorrected_errors",
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. A fact is None if the source does not have it.

    Memory is in MiB as the driver counts it, clocks in MHz, power in W, temperature in °C.
    `pcie_generation` falls while a GPU is idle, so it is meaningful only while the GPU works.
    `pcie_width` does not fall. `fabric` is the state of the NVSwitch registration (completed, in
    progress, not started, not supported). `nvlinks` counts the links that are up.
    """

    index: int
    uuid: str | None = None
    bus_id: str | None = None
    name: str | None = None
    memory_mib: int | None = None
    power_limit_w: int | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    driver: str | None = None
    vbios: str | None = None
    nvlinks: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation_max: int | None = None
    numa: int | None = None
    fabric: str | None = None
    memory_used_mib: int | None = None
    pcie_generation: int | None = None
    temperature_c: int | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: int | None = None
    utilisation_percent: int | None = None
    slowed_by: str | None = None
    uncorrected_errors: int | None = None
    fault: str | None = None

    @property
    def memory_free_mib(self) -> int | None:
        """Return total memory minus used memory; None if either is unknown.

        The memory that the driver reserves for itself may be missing from both.
        """
        return (
            None
            if self.memory_mib is None or self.memory_used_mib is None
            else self.memory_mib - self.memory_used_mib
        )

    def known_facts(self) -> dict[str, Any]:
        """Return the known facts by field name."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds GPU memory.

    If the process is in another PID namespace (a container), `visible` is False and `name` is
    empty.
    """

    pid: int
    name: str = ""
    used_mib: int | None = None
    gpu: int | None = None
    gpu_uuid: str | None = None
    visible: bool = True


def gpu_from(facts: Mapping[str, Any]) -> Gpu:
    """Build a GPU from a mapping with the field names of `Gpu`. Other keys are ignored.

    Raises KeyError without `index`.
    """
    known = {entry.name for entry in fields(Gpu)}
    return Gpu(
        **{"index": int(facts["index"])}
        | {name: value for name, value in facts.items() if name in known - {"index"}}
    )


def stable_facts(gpus: Iterable[Gpu]) -> dict[str, str]:
    """Return the facts that identify the GPUs, one text per field.

    The text is a single value if all GPUs agree. Otherwise it lists the value of each GPU in the
    order of their indices.
    """
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    return (
        {f"gpu_{name}": text for name in STABLE if (text := _column(ordered, name))}
        if ordered
        else {}
    )


def volatile_facts(gpus: Iterable[Gpu]) -> dict[str, str]:
    """Return the facts that change while a host is used, in the form of `stable_facts`."""
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    return (
        {f"gpu_{name}": text for name in VOLATILE if (text := _column(ordered, name))}
        if ordered
        else {}
    )


def _column(gpus: list[Gpu], name: str) -> str:
    values = [getattr(gpu, name) for gpu in gpus]
    if all(value is None for value in values):
        return ""
    texts = [_text(value) for value in values]
    return (
        texts[0]
        if len(set(texts)) == 1
        else " ".join(texts)
        if all(" " not in text for text in texts)
        else "; ".join(texts)
    )


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
