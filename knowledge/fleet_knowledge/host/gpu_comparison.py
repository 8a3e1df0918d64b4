"""Finds differences between the GPUs of one host, and between hosts that should be equal.

The slowest GPU sets the speed of tensor parallelism, so the lowest value over its GPUs describes a
host. An idle GPU lowers its PCIe generation to save power, so the generation is compared only while
the GPUs work. The PCIe width is always compared (nccl issue 1505, sglang issue 26482).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet_knowledge.host.gpu import Gpu


@dataclass(frozen=True, slots=True)
class HostWarning:
    """A warning about something that costs speed or makes results hard to compare."""

    code: str
    message: str
    hint: str

    def to_json(self) -> dict[str, str]:
        """Return the object that `fleetctl diagnose` prints."""
        return {"code": self.code, "message": self.message, "hint": self.hint}


@dataclass(frozen=True, slots=True)
class _Rule:
    """A field that should have the same value on all GPUs of a host.

    `text` is formatted with the value of one GPU. `others_text` is formatted with the value of the
    other GPUs. If `loaded` is set, the rule applies only while the GPUs work.
    """

    field: str
    code: str
    text: str
    others_text: str
    hint: str
    loaded: bool = False


_RESEAT = (
    "reseat the card or riser, and check the slot and the firmware's bifurcation setting; do not "
    "compare this host with healthy ones"
)
_RULES = (
    _Rule(
        "name",
        "gpu_model",
        "is a {}",
        "{}",
        "tensor parallelism over different models runs at the speed of the slowest",
    ),
    _Rule(
        "memory_mib",
        "gpu_memory",
        "has {} MiB of memory",
        "{}",
        "part of the memory may be reserved or retired; MIG and ECC change it too",
    ),
    _Rule("pcie_width", "pcie_width", "runs at PCIe x{}", "x{}", _RESEAT),
    _Rule(
        "pcie_generation",
        "pcie_generation",
        "runs at PCIe generation {} under load",
        "{}",
        _RESEAT,
        loaded=True,
    ),
    _Rule(
        "power_limit_w",
        "power_limit",
        "has a power limit of {} W",
        "{} W",
        "set the limit with `nvidia-smi -i INDEX -pl WATTS`, or find out who lowered it",
    ),
    _Rule(
        "sm_clock_max_mhz",
        "clock_limit",
        "has a maximum SM clock of {} MHz",
        "{} MHz",
        "reset the GPU clocks with `nvidia-smi -i INDEX -rgc`",
    ),
    _Rule(
        "memory_clock_max_mhz",
        "clock_limit",
        "has a maximum memory clock of {} MHz",
        "{} MHz",
        "reset the memory clocks with `nvidia-smi -i INDEX -rmc`",
    ),
    _Rule(
        "nvlinks",
        "nvlinks",
        "has {} NVLinks up",
        "{}",
        "a link is down: see `nvidia-smi nvlink -s` and dmesg for Xid 74; drain the host",
    ),
    _Rule(
        "ecc",
        "ecc",
        "has ECC {}",
        "{}",
        "set the same ECC mode on all GPUs and reboot: ECC costs bandwidth on some models",
    ),
    _Rule(
        "mig",
        "mig",
        "has MIG {}",
        "{}",
        "turn MIG off with `nvidia-smi -i INDEX -mig 0`: a sliced GPU has no NVLink",
    ),
    _Rule(
        "persistence",
        "persistence",
        "has persistence mode {}",
        "{}",
        "run nvidia-persistenced: without it the first CUDA call is slow",
    ),
    _Rule(
        "vbios",
        "vbios",
        "has VBIOS {}",
        "{}",
        "install the same VBIOS on all GPUs: another VBIOS may have other power and clock tables",
    ),
    _Rule(
        "fabric",
        "fabric",
        "has fabric state {}",
        "{}",
        "check nvidia-fabricmanager: the GPU has not joined the NVSwitch fabric",
    ),
)
_MINIMUM_FIELDS = (
    "memory_mib",
    "pcie_width",
    "pcie_generation_max",
    "power_limit_w",
    "sm_clock_max_mhz",
    "memory_clock_max_mhz",
    "nvlinks",
)


def find_inequalities(gpus: Sequence[Gpu], *, under_load: bool = False) -> tuple[HostWarning, ...]:
    """Return a warning for each field in which some GPUs of a host differ from the others, or in
    which all GPUs stay below their maximum.
    """
    found = [
        warning
        for rule in _RULES
        if under_load or not rule.loaded
        for warning in _outliers(rule, gpus)
    ]
    return (*found, *_narrow_pcie(gpus), *(_throttled(gpus) if under_load else ()))


def least_values(gpus: Sequence[Gpu]) -> dict[str, int]:
    """Return the lowest value of each field over the GPUs. These values limit a server that uses
    all GPUs.
    """
    values = {
        name: [value for gpu in gpus if (value := getattr(gpu, name)) is not None]
        for name in _MINIMUM_FIELDS
    }
    return {name: min(known) for name, known in values.items() if known}


def numa_nodes(gpus: Sequence[Gpu]) -> int:
    """Return the number of NUMA nodes that have a GPU."""
    return len({gpu.numa for gpu in gpus if gpu.numa is not None})


def find_differences(
    first: Mapping[str, str], second: Mapping[str, str]
) -> tuple[tuple[str, str, str], ...]:
    """Return (name, first value, second value) of each fact that differs between two fingerprints.

    A value is empty if its fingerprint does not have the fact.
    """
    names = sorted(set(first) | set(second))
    return tuple(
        (name, first.get(name, ""), second.get(name, ""))
        for name in names
        if first.get(name, "") != second.get(name, "")
    )


def parse_hosts(document: Mapping[str, Any]) -> dict[str, list[Gpu]]:
    """Return the GPUs of each host, from a mapping of hosts to lists of facts.

    The facts are for example `numa_affinity`, `pcie_width` and `power_limit_w`. A mapping that has
    such lists at its top level describes one host with an empty name. The result is empty for other
    documents.
    """
    if _has_columns(document):
        return {"": _gpus(document)}
    hosts = {
        name: value
        for name, value in document.items()
        if isinstance(value, Mapping) and _has_columns(value)
    }
    return {name.removeprefix("host_"): _gpus(value) for name, value in hosts.items()}


def compare_hosts(hosts: Mapping[str, Sequence[Gpu]]) -> dict[str, Any]:
    """Return the warnings and lowest values of each host, and the differences between the hosts."""
    names = list(hosts)
    by_host = {
        name: {"numa_nodes": numa_nodes(hosts[name]), **_host_summary(hosts[name])}
        for name in names
    }
    between = [
        f"{other}: {fact} {theirs or 'unknown'} ({names[0]}: {ours or 'unknown'})"
        for other in names[1:]
        for fact, ours, theirs in find_differences(
            _as_facts(hosts[names[0]]), _as_facts(hosts[other])
        )
    ]
    return {
        "numa_nodes": {name: numa_nodes(hosts[name]) for name in names},
        "hosts": by_host,
        "differences": between,
    }


def _host_summary(gpus: Sequence[Gpu]) -> dict[str, Any]:
    nodes = [gpu.numa for gpu in gpus if gpu.numa is not None]
    notes = (
        ["NUMA ids are not in the order of the GPUs: bind each rank by its own GPU's node"]
        if nodes != sorted(nodes)
        else []
    )
    return {
        "gpus": len(gpus),
        "warnings": [warning.message for warning in find_inequalities(gpus)],
        "slowest": least_values(gpus),
        "notes": notes,
    }


def _as_facts(gpus: Sequence[Gpu]) -> dict[str, str]:
    facts = {f"least {name}": str(value) for name, value in least_values(gpus).items()}
    return facts | {"NUMA nodes with GPUs": str(numa_nodes(gpus)), "GPUs": str(len(gpus))}


def _outliers(rule: _Rule, gpus: Sequence[Gpu]) -> list[HostWarning]:
    values = {gpu.index: value for gpu in gpus if (value := getattr(gpu, rule.field)) is not None}
    if len(set(values.values())) < 2:
        return []
    common = _most_common(list(values.values()))
    others = rule.others_text.format(_word(common))
    return [
        HostWarning(
            rule.code, f"GPU{index} {rule.text.format(_word(value))} (others {others})", rule.hint
        )
        for index, value in sorted(values.items())
        if value != common
    ]


def _most_common(values: list[Any]) -> Any:
    """Return the most frequent value. If several are equally frequent, return the greatest.

    A rule then reports the GPUs with the lower value.
    """
    counts = Counter(values)
    return max(
        counts,
        key=lambda value: (counts[value], str(value) if isinstance(value, str) else "", value),
    )


def _word(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _narrow_pcie(gpus: Sequence[Gpu]) -> list[HostWarning]:
    """Warn if all GPUs have the same PCIe width and it is below their maximum."""
    widths = {(gpu.pcie_width, gpu.pcie_width_max) for gpu in gpus}
    if len(widths) != 1 or not gpus:
        return []
    now, most = widths.pop()
    if now is None or most is None or now >= most:
        return []
    return [HostWarning("pcie_width", f"all GPUs run at PCIe x{now} of x{most}", _RESEAT)]


def _throttled(gpus: Sequence[Gpu]) -> list[HostWarning]:
    return [
        HostWarning(
            "slowed",
            f"GPU{gpu.index} is throttled by {gpu.slowed_by}",
            "check cooling and power: results of this GPU are not typical of its model",
        )
        for gpu in gpus
        if gpu.slowed_by
    ]


_COLUMNS = {
    "numa_affinity": "numa",
    "numa": "numa",
    "pcie_width": "pcie_width",
    "pcie_width_max": "pcie_width_max",
    "pcie_generation": "pcie_generation",
    "pcie_gen": "pcie_generation",
    "power_limit_w": "power_limit_w",
    "nvlinks": "nvlinks",
    "name": "name",
    "model": "name",
    "memory_mib": "memory_mib",
    "ecc": "ecc",
    "mig": "mig",
    "persistence": "persistence",
    "sm_clock_max_mhz": "sm_clock_max_mhz",
    "memory_clock_max_mhz": "memory_clock_max_mhz",
    "vbios": "vbios",
    "driver": "driver",
}


def _has_columns(document: Mapping[str, Any]) -> bool:
    return any(name in _COLUMNS and isinstance(value, list) for name, value in document.items())


def _gpus(document: Mapping[str, Any]) -> list[Gpu]:
    columns = {
        _COLUMNS[name]: value
        for name, value in document.items()
        if name in _COLUMNS and isinstance(value, list)
    }
    count = max(map(len, columns.values()))
    return [
        Gpu(
            index,
            **{name: values[index] for name, values in columns.items() if index < len(values)},
        )
        for index in range(count)
    ]
