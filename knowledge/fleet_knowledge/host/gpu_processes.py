"""Describes processes that hold GPU memory. It never advises to end a process of somebody else.

SGLang compares the free memory of its ranks. If one rank has less than nine tenths of the others,
SGLang refuses to start; with SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK off it only warns. The message
is `memory capacity is unbalanced` (0.3 to 0.5; sglang issues 1533, 4233, pulls 2457, 5426).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet_knowledge.host.gpu import Gpu, GpuProcess
from fleet_knowledge.host.nvidia_smi_gpus import parse_number

LEFTOVER_FAILURE_CLASS = "gpu_busy_leftover"
UNEQUAL_ABOVE = 0.10  # of the highest free memory; SGLang's own check allows this much
_UNBALANCED = re.compile(r"memory capacity is unbalanced", re.I)
_TABLE = re.compile(
    r"^\|\s+(\d+)\s+(?:\S+\s+\S+\s+)?(\d+)\s+([CGM+]+)\s+(.*?)\s+(\d+)\s*MiB\s*\|", re.M
)
_UNSEEN_NAMES = ("[not found]", "[n/a]", "n/a", "-", "", "[insufficient permissions]")
_SERVER = re.compile(r"sglang|vllm|launch_server|ray::|python", re.I)


@dataclass(frozen=True, slots=True)
class GpuMemoryHolder:
    """A process that holds GPU memory, with its owner.

    `standing` is `ours`, `orphan` (its parent is dead), `foreign`, `unseen` (in another PID
    namespace) or `unknown`.
    """

    process: GpuProcess
    standing: str = "unknown"
    owner: str = ""

    def __str__(self) -> str:
        used = f", {self.process.used_mib} MiB" if self.process.used_mib is not None else ""
        gpu = f" on GPU{self.process.gpu}" if self.process.gpu is not None else ""
        return f"pid {self.process.pid} ({self.description}{used}{gpu})"

    @property
    def description(self) -> str:
        """Return the name, owner and standing of the process, as part of a sentence."""
        name = self.process.name or "no name"
        of = f" of {self.owner}" if self.owner else ""
        return {
            "ours": f"{name}, of a server of this agent",
            "orphan": f"{name}{of}, of an earlier run whose parent is dead",
            "unseen": "not visible in this PID namespace: another container",
        }.get(self.standing, f"{name}{of}")


def is_unbalanced_message(text: str) -> bool:
    """Return whether a text is SGLang's error or warning about unequal free memory."""
    return _UNBALANCED.search(text) is not None


def read_processes(text: str) -> tuple[GpuProcess, ...]:
    """Read processes from `nvidia-smi --query-compute-apps=… --format=csv` or from the plain table.

    The CSV needs its header line.
    """
    lines = [line for line in text.strip().split("\n") if line.strip()]
    names = [
        re.sub(r"\s*\[.*\]$", "", name.strip()) for name in (lines[0].split(",") if lines else ())
    ]
    if "pid" in names:
        rows = csv.reader(lines[1:], skipinitialspace=True)
        return tuple(
            process for row in rows if (process := _process(dict(zip(names, row, strict=False))))
        )
    return tuple(
        GpuProcess(
            int(found[2]),
            found[4].strip(),
            int(found[5]),
            int(found[1]),
            visible=not _is_unseen(found[4]),
        )
        for found in _TABLE.finditer(text)
    )


def _process(row: Mapping[str, str]) -> GpuProcess | None:
    pid, name = (
        parse_number(row.get("pid", "")),
        row.get("process_name", row.get("name", "")).strip(),
    )
    if pid is None:
        return None
    used = parse_number(row.get("used_gpu_memory", row.get("used_memory", "")))
    return GpuProcess(
        pid,
        "" if _is_unseen(name) else name,
        used,
        gpu_uuid=row.get("gpu_uuid"),
        visible=not _is_unseen(name),
    )


def _is_unseen(name: str) -> bool:
    return name.strip().lower() in _UNSEEN_NAMES


def classify_holders(processes: Sequence[GpuProcess]) -> tuple[GpuMemoryHolder, ...]:
    """Classify processes by their names alone.

    A process with the name of a server counts as left over from an earlier run.
    """
    return tuple(
        GpuMemoryHolder(
            process, "unseen" if not process.visible else _standing_by_name(process.name)
        )
        for process in processes
    )


def _standing_by_name(name: str) -> str:
    return "orphan" if "sglang::" in name or "scheduler" in name else "unknown"


def holders_hint(holders: Sequence[GpuMemoryHolder]) -> str:
    """Return who holds the memory and what to do: end your own processes, and report other
    processes.
    """
    if not holders:
        return (
            "No process is listed: it may be in another container. Run `nvidia-smi "
            "--query-compute-apps=pid,process_name,used_gpu_memory --format=csv` on the host "
            "itself. Never end a process that is not yours."
        )
    held = " and by ".join(f"pid {holder.process.pid} ({holder.description})" for holder in holders)
    known = [str(holder.process.pid) for holder in holders if holder.standing in ("ours", "orphan")]
    others = [
        str(holder.process.pid) for holder in holders if holder.standing not in ("ours", "orphan")
    ]
    end = f"end {', '.join(known)} only if this agent or you started it" if known else ""
    report = f"report {', '.join(others)} to its owner" if others else ""
    steps = "; ".join(step for step in (end, report) if step)
    return (
        f"GPU memory is held by {held}. To do: {steps}; never kill a process that is not yours. "
        "Then wait until the memory is free."
    )


def explain_holders(processes: Sequence[GpuProcess]) -> dict[str, Any]:
    """Return the part of a diagnosis that follows from a list of processes."""
    holders = classify_holders(processes)
    return {
        "failure_class": LEFTOVER_FAILURE_CLASS,
        "pids": [holder.process.pid for holder in holders],
        "holders": [
            {
                "pid": holder.process.pid,
                "name": holder.process.name,
                "used_mib": holder.process.used_mib,
                "standing": holder.standing,
            }
            for holder in holders
        ],
        "hint": holders_hint(holders),
    }


def describe_unequal_memory(gpus: Sequence[Gpu]) -> str:
    """Return which GPUs have so little free memory, compared with another GPU, that SGLang refuses
    to start. Return an empty text if there are no such GPUs.
    """
    free = {gpu.index: gpu.memory_free_mib for gpu in gpus if gpu.memory_free_mib is not None}
    most = max(free.values(), default=0)
    short = [
        f"GPU{index} {value / 1024:.1f} GiB"
        for index, value in free.items()
        if value < most * (1 - UNEQUAL_ABOVE)
    ]
    if not short:
        return ""
    return (
        f"free memory differs by more than {UNEQUAL_ABOVE:.0%}: {', '.join(short)}, "
        f"others up to {most / 1024:.1f} GiB"
    )
