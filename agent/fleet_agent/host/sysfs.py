"""Reads facts about the host from /sys and /proc. Facts that cannot be read are left out.

`root` is the folder that contains /sys and /proc. It differs from `/` only in tests.
"""

from __future__ import annotations

import os
import platform
import re
import socket
from pathlib import Path

from fleet_knowledge.host.lscpu import read_lscpu

# id of the extended capability Access Control Services, PCIe base specification 5.0, 7.7.8
_ACS = 0x000D
# request redirect, completion redirect, egress control: with these, peer-to-peer traffic goes
# through the root complex
_ACS_REDIRECTS = 0x04 | 0x08 | 0x20
_BRIDGE = 0x0604


def read_text(path: Path) -> str:
    """Return the stripped content of a small file. Empty if the file cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def pci_device_folder(bus_id: str, root: Path) -> Path:
    """Return the folder of a PCI device in /sys.

    NVML writes the PCI domain with eight digits, the kernel with four.
    """
    domain, _, rest = bus_id.lower().partition(":")
    return root / "sys/bus/pci/devices" / f"{domain[-4:].rjust(4, '0')}:{rest}"


def host_name() -> str:
    """Return the host's own name, without its domain."""
    return socket.gethostname().split(".")[0] or "localhost"


def driver_gpus(root: Path = Path("/")) -> int:
    """Return how many NVIDIA GPUs the kernel driver shows. Return 0 without the driver."""
    folder = root / "proc/driver/nvidia/gpus"
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def numa_node(bus_id: str, root: Path = Path("/")) -> int | None:
    """Return the NUMA node nearest to a PCI device. Return None if the kernel does not know it."""
    node = read_text(pci_device_folder(bus_id, root) / "numa_node")
    return int(node) if node.isdecimal() else None


def process_name(pid: int, root: Path = Path("/")) -> str:
    """Return the command line of a process, at most 200 characters. Return its short name if it has
    no command line.

    Empty for a process in another PID namespace.
    """
    words = read_text(root / "proc" / str(pid) / "cmdline").replace("\0", " ").strip()
    return words[:200] or read_text(root / "proc" / str(pid) / "comm")


def kernel_facts(root: Path = Path("/")) -> dict[str, str]:
    """Return the facts that identify a host and do not change while it runs, without its GPUs."""
    meminfo = _parse_fields(read_text(root / "proc/meminfo"))
    processors = read_lscpu(read_text(root / "proc/cpuinfo"))
    facts = {
        "kernel": read_text(root / "proc/sys/kernel/osrelease") or platform.release(),
        "machine": platform.machine(),
        "cpu_model": processors.cpu_model or "",
        "sockets": str(processors.sockets or ""),
        "cpus": str(os.cpu_count() or ""),
        "numa_nodes": _numa_nodes(root),
        "memory_total": meminfo.get("MemTotal", ""),
        "cpu_governor": _governors(root),
        "hugepages": meminfo.get("HugePages_Total", ""),
        "transparent_hugepages": _bracketed_word(
            read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")
        ),
        "numa_balancing": read_text(root / "proc/sys/kernel/numa_balancing"),
        "iommu": iommu(root),
        "acs": acs(root),
        "shm": shm_size(root),
    }
    return {name: value for name, value in facts.items() if value}


def iommu(root: Path = Path("/")) -> str:
    """Return the state of the IOMMU: `on`, `passthrough` or `off`. Empty if /sys cannot be read.

    In passthrough mode the IOMMU is on, but it does not translate the addresses of the host's own
    devices.
    """
    groups = root / "sys/kernel/iommu_groups"
    if not groups.is_dir():
        return ""
    if not any(groups.iterdir()):
        return "off"
    return (
        "passthrough"
        if re.search(r"\biommu(?:\.passthrough)?=(?:pt|1)\b", read_text(root / "proc/cmdline"))
        else "on"
    )


def acs(root: Path = Path("/")) -> str:
    """Return `on` if a PCI bridge redirects peer-to-peer traffic, otherwise `off`. Redirection
    slows down GPUs without NVLink.

    Empty if the register of the bridge cannot be read. Only root may read it, because it is beyond
    the first 64 bytes of a device's configuration.
    """
    redirecting = [
        value for bridge in _bridges(root) if (value := _acs_control(bridge)) is not None
    ]
    if not redirecting:
        return ""
    return "on" if any(value & _ACS_REDIRECTS for value in redirecting) else "off"


def shm_size(root: Path = Path("/")) -> str:
    """Return the size of /dev/shm as a text such as `64 MiB`, the default in a container. Empty if
    /dev/shm does not exist.

    NCCL and SGLang's ranks exchange data through /dev/shm.
    """
    total = shm_bytes(root)
    return f"{total >> 20} MiB" if total else ""


def shm_bytes(root: Path = Path("/")) -> int:
    """Return the size of /dev/shm in bytes. Return 0 if it does not exist."""
    try:
        status = os.statvfs(root / "dev/shm")
    except OSError:
        return 0
    return status.f_blocks * status.f_frsize


def _parse_fields(table: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in table.split("\n"))
    return {name.strip(): " ".join(value.split()) for name, _, value in pairs}


def _bracketed_word(words: str) -> str:
    """Return the word in brackets, for example `madvise` for `always [madvise] never`."""
    found = re.search(r"\[(\w+)\]", words)
    return found[1] if found else ""


def _governors(root: Path) -> str:
    """Return the names of the CPUs' frequency governors, without duplicates."""
    found = {
        read_text(path)
        for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    }
    return " ".join(sorted(word for word in found if word))


def _numa_nodes(root: Path) -> str:
    """Return how many NUMA nodes have CPUs. Empty if that cannot be read."""
    nodes = (root / "sys/devices/system/node").glob("node[0-9]*/cpulist")
    count = sum(bool(read_text(path)) for path in nodes)
    return str(count) if count else ""


def _bridges(root: Path) -> list[Path]:
    folder = root / "sys/bus/pci/devices"
    devices = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in devices if read_text(path / "class").startswith(f"0x{_BRIDGE:04x}")]


def _acs_control(bridge: Path) -> int | None:
    """Return the ACS control register of a bridge. Return None if the bridge has no such register
    or it cannot be read.
    """
    try:
        config = (bridge / "config").read_bytes()
    except OSError:
        return None
    place = 0x100
    for _ in range(48):  # bounded, since a broken list may be a loop
        if place < 0x100 or place + 8 > len(config):
            return None
        head = int.from_bytes(config[place : place + 4], "little")
        if head & 0xFFFF == _ACS:
            return int.from_bytes(config[place + 6 : place + 8], "little")
        place = head >> 20
    return None
