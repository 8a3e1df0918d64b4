"""Reads a host's CPUs and its GPUs' NUMA nodes from sysfs.

Sources: Linux's Documentation/ABI/stable/sysfs-devices-node and testing/sysfs-bus-pci. GPUs are
numbered in the order of their PCI addresses, as nvidia-smi and NVML do.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from fleet_agent.engines.sglang.launch.cpu_binding import HostCpus, parse_cpu_list

_NVIDIA = "0x10de"
# Display and 3D controllers; NVIDIA's bridges and audio devices have other classes.
_GPU_CLASSES = ("0x0300", "0x0302")
_ADDRESS = re.compile(r"[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def read_host_cpus(sysfs: Path = Path("/sys")) -> HostCpus:
    """Return what the kernel reports now. A value whose file is missing stays empty."""
    programs = {name: path for name in ("taskset", "numactl") if (path := shutil.which(name))}
    return HostCpus(_nodes(sysfs), frozenset(os.sched_getaffinity(0)), _gpus(sysfs), programs)


def _nodes(sysfs: Path) -> dict[int, frozenset[int]]:
    folders = (sysfs / "devices/system/node").glob("node[0-9]*")
    return {
        int(folder.name.removeprefix("node")): parse_cpu_list(_text(folder / "cpulist"))
        for folder in folders
    }


def _gpus(sysfs: Path) -> dict[int, int]:
    found = [
        folder
        for folder in (sysfs / "bus/pci/devices").glob("*")
        if _ADDRESS.fullmatch(folder.name) and _is_gpu(folder)
    ]
    nodes = [_text(folder / "numa_node") for folder in sorted(found, key=_pci_sort_key)]
    # -1 means that the firmware does not report the node
    return {index: int(node) for index, node in enumerate(nodes) if node.isdecimal()}


def _pci_sort_key(folder: Path) -> list[int]:
    return [int(number, 16) for number in re.split("[:.]", folder.name)]


def _is_gpu(folder: Path) -> bool:
    return _text(folder / "vendor") == _NVIDIA and _text(folder / "class").startswith(_GPU_CLASSES)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
