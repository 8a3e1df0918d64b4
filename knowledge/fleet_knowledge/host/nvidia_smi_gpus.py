"""Parses the GPUs that nvidia-smi prints: `-L`, `--query-gpu` as CSV, `-q`, and the plain table.

Formats: drivers 470 to 580. A value that a GPU does not have is `N/A` or `[N/A]`. A value that
could not be read is `[Unknown Error]`, `[GPU is lost]` or `ERR!`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from typing import Any

from fleet_knowledge.host.gpu import Gpu, gpu_from

_LISTED = re.compile(r"^\s*GPU (\d+): (.+?) \(UUID: ([^)]*)\)", re.M)
_SLICES = re.compile(r"^\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: ([^)]*)\)", re.M)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_NOTHING = (
    "",
    "n/a",
    "not supported",
    "unknown error",
    "requested functionality has been deprecated",
)
_BROKEN = re.compile(r"\[?(Unknown Error|GPU is lost|GPU requires reset)\]?|ERR!", re.I)
_TABLE_HEAD = re.compile(
    r"^\|\s+(\d+)\s+(\S.*?)\s+(On|Off|N/A)\s*\|"
    r"\s*([0-9A-Fa-f]+:[0-9A-Fa-f:.]+)\s+\S+\s*\|\s*(\S+)\s*\|",
    re.M,
)
_TABLE_BODY = re.compile(
    r"[^\n]*\n\|\s*(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s*/\s*(\S+)\s*\|\s*([^|\n]*?)\s*\|\s*(\S+)"
)
_TABLE_DRIVER = re.compile(r"Driver Version: (\S+)")


def parse_number(text: str) -> int | None:
    """Return the number that a text begins with, without its unit; None for `N/A` and the like."""
    found = _NUMBER.match(text.strip())
    return int(float(found[0])) if found else None


def parse_switch(text: str) -> bool | None:
    """Return True for a text of nvidia-smi that means on, False for off, None for any
    other text.
    """
    return {"enabled": True, "on": True, "disabled": False, "off": False}.get(
        text.strip().strip("[]").lower()
    )


def parse_text(text: str) -> str | None:
    """Return the text; None if it means that there is no value."""
    clean = text.strip()
    return None if clean.strip("[]").lower() in _NOTHING else clean


def read_gpu_list(text: str) -> tuple[Gpu, ...]:
    """Read `nvidia-smi -L`: index, model, UUID, and whether there are MIG slices."""
    slices = {found.start() for found in _SLICES.finditer(text)}
    listed = list(_LISTED.finditer(text))
    ends = [*(found.start() for found in listed[1:]), len(text)][: len(listed)]
    return tuple(
        Gpu(
            int(found[1]),
            uuid=found[3],
            name=found[2],
            mig=True if any(found.start() < place < end for place in slices) else None,
        )
        for found, end in zip(listed, ends, strict=True)
    )


Reader = Callable[[str], Any]
_QUERY_FIELDS: Mapping[str, tuple[str, Reader]] = {
    "index": ("index", parse_number),
    "name": ("name", parse_text),
    "gpu_name": ("name", parse_text),
    "uuid": ("uuid", parse_text),
    "gpu_uuid": ("uuid", parse_text),
    "pci.bus_id": ("bus_id", parse_text),
    "gpu_bus_id": ("bus_id", parse_text),
    "memory.total": ("memory_mib", parse_number),
    "memory.used": ("memory_used_mib", parse_number),
    "power.limit": ("power_limit_w", parse_number),
    "enforced.power.limit": ("power_limit_w", parse_number),
    "power.draw": ("power_w", parse_number),
    "ecc.mode.current": ("ecc", parse_switch),
    "mig.mode.current": ("mig", parse_switch),
    "persistence_mode": ("persistence", parse_switch),
    "clocks.max.sm": ("sm_clock_max_mhz", parse_number),
    "clocks.max.memory": ("memory_clock_max_mhz", parse_number),
    "clocks.sm": ("sm_clock_mhz", parse_number),
    "clocks.current.sm": ("sm_clock_mhz", parse_number),
    "clocks.mem": ("memory_clock_mhz", parse_number),
    "clocks.current.memory": ("memory_clock_mhz", parse_number),
    "driver_version": ("driver", parse_text),
    "vbios_version": ("vbios", parse_text),
    "pcie.link.width.current": ("pcie_width", parse_number),
    "pcie.link.width.max": ("pcie_width_max", parse_number),
    "pcie.link.gen.current": ("pcie_generation", parse_number),
    "pcie.link.gen.max": ("pcie_generation_max", parse_number),
    "pcie.link.gen.gpucurrent": ("pcie_generation", parse_number),
    "temperature.gpu": ("temperature_c", parse_number),
    "utilization.gpu": ("utilisation_percent", parse_number),
    "fabric.state": ("fabric", parse_text),
    "ecc.errors.uncorrected.volatile.total": ("uncorrected_errors", parse_number),
}


def read_gpu_query(text: str) -> tuple[Gpu, ...]:
    """Read `nvidia-smi --query-gpu=… --format=csv` with its header line. Units in it are ignored.

    The result is empty unless at least two columns, and half of all columns, are known.
    """
    lines = [line for line in text.strip().split("\n") if line.strip()]
    names = [
        re.sub(r"\s*\[.*\]$", "", name.strip()) for name in (lines[0].split(",") if lines else ())
    ]
    known = [name for name in names if name in _QUERY_FIELDS]
    if len(known) < 2 or len(known) * 2 < len(names):
        return ()
    rows = list(csv.reader(lines[1:], skipinitialspace=True))
    return tuple(
        _gpu_from_row(names, row, place) for place, row in enumerate(rows) if len(row) == len(names)
    )


def _gpu_from_row(names: list[str], row: list[str], place: int) -> Gpu:
    facts = {
        _QUERY_FIELDS[name][0]: _QUERY_FIELDS[name][1](value)
        for name, value in zip(names, row, strict=True)
        if name in _QUERY_FIELDS
    }
    broken = next((value.strip() for value in row if _BROKEN.search(value)), None)
    return gpu_from(
        {"fault": broken}
        | facts
        | {"index": facts.get("index") if facts.get("index") is not None else place}
    )


# Path in `nvidia-smi -q` below the section of a GPU → field and reader
_DETAIL_FIELDS: Mapping[tuple[str, ...], tuple[str, Reader]] = {
    ("Product Name",): ("name", parse_text),
    ("GPU UUID",): ("uuid", parse_text),
    ("VBIOS Version",): ("vbios", parse_text),
    ("Persistence Mode",): ("persistence", parse_switch),
    ("MIG Mode", "Current"): ("mig", parse_switch),
    ("Ecc Mode", "Current"): ("ecc", parse_switch),
    ("ECC Mode", "Current"): ("ecc", parse_switch),
    ("FB Memory Usage", "Total"): ("memory_mib", parse_number),
    ("FB Memory Usage", "Used"): ("memory_used_mib", parse_number),
    ("Max Clocks", "SM"): ("sm_clock_max_mhz", parse_number),
    ("Max Clocks", "Memory"): ("memory_clock_max_mhz", parse_number),
    ("Clocks", "SM"): ("sm_clock_mhz", parse_number),
    ("Clocks", "Memory"): ("memory_clock_mhz", parse_number),
    ("GPU Power Readings", "Current Power Limit"): ("power_limit_w", parse_number),
    ("Power Readings", "Power Limit"): ("power_limit_w", parse_number),
    ("Power Readings", "Enforced Power Limit"): ("power_limit_w", parse_number),
    ("PCIe Generation", "Max"): ("pcie_generation_max", parse_number),
    ("PCIe Generation", "Current"): ("pcie_generation", parse_number),
    ("Link Width", "Max"): ("pcie_width_max", parse_number),
    ("Link Width", "Current"): ("pcie_width", parse_number),
    ("Fabric", "State"): ("fabric", parse_text),
    ("Fabric", "Status"): ("fabric_status", parse_text),
    ("Temperature", "GPU Current Temp"): ("temperature_c", parse_number),
    ("GPU NUMA ID",): ("numa", parse_number),
    ("Utilization", "Gpu"): ("utilisation_percent", parse_number),
}
_SECTION = re.compile(r"^GPU ([0-9A-Fa-f]+:[0-9A-Fa-f:.]+)\s*$", re.M)


def read_gpu_details(text: str) -> tuple[Gpu, ...]:
    """Read `nvidia-smi -q`, which lists the GPUs in the order of their indices."""
    driver = re.search(r"^Driver Version\s*:\s*(\S+)", text, re.M)
    heads = list(_SECTION.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)][: len(heads)]
    return tuple(
        _gpu_from_section(place, head[1], text[head.end() : end], driver[1] if driver else None)
        for place, (head, end) in enumerate(zip(heads, ends, strict=True))
    )


def _gpu_from_section(index: int, bus_id: str, section: str, driver: str | None) -> Gpu:
    facts: dict[str, Any] = {"index": index, "bus_id": bus_id, "driver": driver}
    for path, value in _entries(section):
        for known in (path[-1:], path[-2:]):
            name, read = _DETAIL_FIELDS.get(known, ("", parse_text))
            if name and facts.get(name) is None:
                facts[name] = read(value)
        if _BROKEN.search(value):
            facts.setdefault("fault", f"{path[-1]}: {value}")
    return gpu_from(facts | {"fabric": _fabric(facts)})


def _fabric(facts: Mapping[str, Any]) -> str | None:
    """Return the fabric state. A state that completed without success is `failed (STATUS)`."""
    state, status = facts.get("fabric"), facts.get("fabric_status")
    done = str(state).lower() == "completed" and status not in (None, "Success")
    return f"failed ({status})" if done else str(state).lower() if state else None


def _entries(section: str) -> list[tuple[tuple[str, ...], str]]:
    """Return (path of headings and name, value) of each entry. The indentation gives the path."""
    above: list[tuple[int, str]] = []
    entries = []
    for line in section.split("\n"):
        depth, (name, colon, value) = len(line) - len(line.lstrip()), line.partition(" : ")
        if not name.strip():
            continue
        above = [entry for entry in above if entry[0] < depth]
        if colon:
            entries.append(((*(heading for _, heading in above), name.strip()), value.strip()))
        else:
            above.append((depth, name.strip()))
    return entries


def read_gpu_table(text: str) -> tuple[Gpu, ...]:
    """Read the plain table of `nvidia-smi`. A GPU with an error in a cell gets a `fault`."""
    driver = _TABLE_DRIVER.search(text)
    found = []
    for head in _TABLE_HEAD.finditer(text):
        body = _TABLE_BODY.match(text, head.end())
        cells = body.groups() if body else ("",) * 7
        used, _, total = cells[5].partition("/")
        found.append(
            Gpu(
                int(head[1]),
                bus_id=head[4],
                name=head[2],
                persistence=parse_switch(head[3]),
                driver=driver[1] if driver else None,
                temperature_c=parse_number(cells[1]),
                power_w=parse_number(cells[3]),
                power_limit_w=parse_number(cells[4]),
                memory_used_mib=parse_number(used),
                memory_mib=parse_number(total),
                utilisation_percent=parse_number(cells[6]),
                uncorrected_errors=parse_number(head[5]),
                fault=_table_fault(*cells, head[3], head[5]),
            )
        )
    return tuple(found)


def _table_fault(*cells: str) -> str | None:
    """Return the longest error in the cells, None if there is none."""
    broken = [found[0].strip("[]") for cell in cells if (found := _BROKEN.search(cell))]
    return max(broken, key=len, default=None)
