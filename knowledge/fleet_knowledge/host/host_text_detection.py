"""Recognises texts about a host and returns what `fleetctl diagnose` shows of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fleet_knowledge.host import (
    gpu_comparison,
    gpu_processes,
    lscpu,
    nvidia_smi_errors,
    nvidia_smi_gpus,
    nvswitch_fabric,
)
from fleet_knowledge.host.gpu import Gpu
from fleet_knowledge.host.topology import Topology, read_topology
from fleet_knowledge.host.topology_matrix import strip_decoration

_DAMAGED = re.compile(r"infoROM is corrupted at gpu (\S+)", re.I)
_INFOROM = "have the card checked: the GPU works, but its stored errors and limits may be wrong"
_SHORT = 40  # lines; in so short a text, one line is enough to show the state of the host


def recognise_host_text(text: str) -> Mapping[str, Any] | None:
    """Return what the text shows of a host; None if the text is of another kind. Never raises.

    Keys: `kind` (topology, nvidia_smi, gpu_processes, lscpu, hosts), `host_state`, `failure_class`,
    `hint`, `warnings`, and more that depend on the kind.
    """
    clean = strip_decoration(text)
    if not clean.strip():
        return None
    return next((found for read in _KINDS if (found := read(clean))), None)


def _host_result(kind: str, **facts: Any) -> dict[str, Any]:
    blank: dict[str, Any] = {
        "failure_class": None,
        "cause_line": None,
        "hint": None,
        "warnings": [],
    }
    return {"kind": kind, "state": "host", "host_state": "ok"} | blank | facts


def _document(text: str) -> dict[str, Any] | None:
    if text.lstrip()[:1] != "{":
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    hosts = gpu_comparison.parse_hosts(document) if isinstance(document, Mapping) else {}
    if not hosts:
        return None
    warnings = [
        warning.to_json() | {"message": f"{name}: {warning.message}" if name else warning.message}
        for name, gpus in hosts.items()
        for warning in gpu_comparison.find_inequalities(gpus)
    ]
    comparison = gpu_comparison.compare_hosts(hosts)
    return _host_result(
        "hosts",
        **comparison,
        warnings=warnings,
        host_state="unequal" if warnings else "ok",
        summary="; ".join(comparison["differences"]),
    )


def _topology(text: str) -> dict[str, Any] | None:
    found = read_topology(text)
    if not found.gpus:
        return None
    hint = "compare this host only with others of the same class"
    warnings = [
        {"code": "topology", "message": warning, "hint": hint} for warning in found.warnings
    ]
    return _host_result(
        "topology",
        topology=found.to_json(),
        **(found.to_json() | {"warnings": warnings}),
        summary=_topology_summary(found),
    )


def _topology_summary(found: Topology) -> str:
    """Summarise a topology in one line."""
    if found.peer_access is not None:
        return (
            "all GPUs can access each other's memory"
            if found.peer_access
            else "not all GPUs can access each other's memory (peer access)"
        )
    numa = " ".join("-" if node is None else str(node) for node in found.numa.values())
    islands = " | ".join(",".join(map(str, island)) for island in found.islands)
    nics = ", ".join(f"{gpu} {nic or 'none'}" for gpu, nic in found.nearest_nic.items())
    return f"islands {islands}; NUMA {numa or 'unknown'}" + (
        f"; nearest network card {nics}" if nics else ""
    )


def _driver_error(text: str) -> dict[str, Any] | None:
    """Return the driver error in a text; None if the text is a server log that only quotes an
    error.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    errors = sum(nvidia_smi_errors.is_driver_error_line(line) for line in lines)
    if (
        not errors
        or (len(lines) > _SHORT and errors * 2 < len(lines))
        or "Traceback (most recent call last)" in text
    ):
        return None
    state = nvidia_smi_errors.read_driver_error(text)
    return (
        _host_result(
            "nvidia_smi",
            gpus=[gpu.known_facts() for gpu in nvidia_smi_gpus.read_gpu_list(text)],
            **state,
        )
        if state
        else None
    )


def _processes(text: str) -> dict[str, Any] | None:
    first = text.strip().split("\n")[0]
    if "pid" not in [name.strip() for name in first.split(",")]:
        return None
    processes = gpu_processes.read_processes(text)
    explained = (
        gpu_processes.explain_holders(processes)
        if processes
        else {"pids": [], "holders": [], "hint": "no process holds GPU memory"}
    )
    return _host_result(
        "gpu_processes", **(explained | {"host_state": "busy" if processes else "ok"})
    )


def _gpus(text: str) -> dict[str, Any] | None:
    for read in (
        nvidia_smi_gpus.read_gpu_query,
        nvidia_smi_gpus.read_gpu_details,
        nvidia_smi_gpus.read_gpu_table,
        nvidia_smi_gpus.read_gpu_list,
    ):
        if gpus := read(text):
            return _gpus_result(gpus, text)
    return None


def _gpus_result(gpus: Sequence[Gpu], text: str) -> dict[str, Any]:
    inequalities = gpu_comparison.find_inequalities(gpus)
    warnings = [warning.to_json() for warning in inequalities] + _faults(gpus)
    least = ", ".join(
        f"{name} {value}" for name, value in gpu_comparison.least_values(gpus).items()
    )
    models = ", ".join(sorted({gpu.name for gpu in gpus if gpu.name}))
    summary = f"{len(gpus)} GPUs ({models})" + (f"; lowest values: {least}" if least else "")
    damaged = (
        gpu_comparison.HostWarning(
            "inforom", f"the infoROM of the GPU at {bus} is damaged", _INFOROM
        )
        for bus in _DAMAGED.findall(text)
    )
    warnings += [warning.to_json() for warning in damaged]
    result = _host_result(
        "nvidia_smi",
        gpus=[gpu.known_facts() for gpu in gpus],
        slowest=gpu_comparison.least_values(gpus),
        warnings=warnings,
        summary=summary,
    )
    result |= {"host_state": "unequal" if warnings else "ok", "fabric": _fabric(gpus)}
    result |= (
        {"processes": gpu_processes.explain_holders(processes)["holders"]}
        if (processes := gpu_processes.read_processes(text))
        else {}
    )
    broken = [gpu for gpu in gpus if gpu.fault]
    if broken:
        lost = any("lost" in (gpu.fault or "").lower() for gpu in broken)
        hint = (
            "A GPU does not answer some queries: dmesg shows why (Xid). Drain the host and reset "
            "the GPU or reboot before you measure here."
        )
        line = next(
            (line.strip() for line in text.split("\n") if str(broken[0].fault) in line), None
        )
        result |= {
            "host_state": "degraded",
            "failure_class": "gpu_lost" if lost else "gpu_fault",
            "cause_line": line,
            "hint": hint,
        }
    if problem := nvswitch_fabric.fabric_problem(gpus):
        result |= {
            "host_state": "degraded",
            "failure_class": nvswitch_fabric.FABRIC_FAILURE_CLASS,
            "cause_line": problem,
            "hint": nvswitch_fabric.fabric_hint(),
        }
    return result


def _fabric(gpus: Sequence[Gpu]) -> str:
    if nvswitch_fabric.gpus_not_joined(gpus):
        return "down"
    if any(gpu.fabric is not None for gpu in gpus):
        return "ok"
    return nvswitch_fabric.FABRIC_UNKNOWN if nvswitch_fabric.needs_fabric(gpus) else "not needed"


def _faults(gpus: Sequence[Gpu]) -> list[dict[str, str]]:
    hint = "see dmesg for the cause (Xid); reset the GPU or reboot before you measure here"
    faulty = [
        gpu_comparison.HostWarning("gpu_fault", f"GPU{gpu.index} reports {gpu.fault}", hint)
        for gpu in gpus
        if gpu.fault
    ]
    errors = [
        gpu_comparison.HostWarning(
            "ecc_errors",
            f"GPU{gpu.index} has {gpu.uncorrected_errors} uncorrected memory errors",
            "drain the host and reset the GPU",
        )
        for gpu in gpus
        if gpu.uncorrected_errors
    ]
    return [warning.to_json() for warning in (*faulty, *errors)]


def _processors(text: str) -> dict[str, Any] | None:
    found = lscpu.read_lscpu(text)
    counts = [found.cpus, found.sockets, found.threads_per_core, found.numa_nodes_with_cpus]
    if all(count is None for count in counts) or (found.cpus is None and found.numa_nodes is None):
        return None
    return _host_result("lscpu", lscpu=found.to_json(), **found.to_json())


_KINDS: Sequence[Callable[[str], dict[str, Any] | None]] = (
    _document,
    _topology,
    _driver_error,
    _processes,
    _gpus,
    _processors,
)
