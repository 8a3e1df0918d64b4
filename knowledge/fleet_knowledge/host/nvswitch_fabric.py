"""Interprets the fabric state of NVSwitch GPUs.

`nvidia-smi -q` has a section `Fabric` from driver 525 on. In a server's log, the same problem is
CUDA error 802, `system not yet initialized` (pytorch issue 35710): nvidia-smi works, CUDA does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fleet_knowledge.failure_classes import FAILURES
from fleet_knowledge.host.gpu import Gpu

FABRIC_FAILURE_CLASS = "fabric_manager_down"
_SWITCHED = re.compile(
    r"\b(?:H100 80GB HBM3|H200|H800|H20|B200|B300|GB200|GB300|A100-SXM|A800-SXM|V100-SXM|SXM\d?)\b"
)
FABRIC_UNKNOWN = (
    "unknown: see Fabric State in `nvidia-smi -q`; nvidia-smi works even if the fabric is down"
)
_ALONE = re.compile(r"PCIe|NVL|\bGH200\b")
_FINE = ("completed", "not supported", "n/a", "none")


def needs_fabric(gpus: Sequence[Gpu]) -> bool:
    """Return whether the GPUs are of models that are usually connected by NVSwitches."""
    return bool(gpus) and all(
        gpu.name and _SWITCHED.search(gpu.name) and not _ALONE.search(gpu.name) for gpu in gpus
    )


def gpus_not_joined(gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs that should have joined a fabric but have not."""
    return tuple(gpu for gpu in gpus if gpu.fabric is not None and gpu.fabric.lower() not in _FINE)


def fabric_problem(gpus: Sequence[Gpu]) -> str:
    """Return what is wrong with the fabric; empty if nothing is known to be wrong."""
    missing = gpus_not_joined(gpus)
    states = ", ".join(f"GPU{gpu.index} {gpu.fabric}" for gpu in missing)
    return f"the fabric state is not `completed`: {states}" if missing else ""


def fabric_hint() -> str:
    """Return what to do about a fabric problem."""
    return (
        f"{FAILURES[FABRIC_FAILURE_CLASS].hint} `systemctl status nvidia-fabricmanager` shows why "
        "it does not run."
    )
