"""Interprets the device matrix of `nvidia-smi topo -m` for a server over several GPUs.

Format: nvidia-smi of drivers 450 to 580. Columns are separated by tabs (as printed) or blanks (as
copied). The text lists the GPUs, then the NICs. A NIC has its own name, or is `NIC0` with a legend.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from fleet_knowledge.host import amd_topology, link_types
from fleet_knowledge.host.topology_matrix import Matrix, gpu_index, read_matrix, strip_decoration

# On Grace Blackwell, the processor's node is followed by those of the GPU memory: `0,2-17`
_OWN_NODE = re.compile(r"(\d+)(?:,\d+-\d+)?")
_NIC_NAME = re.compile(r"^\s*(NIC\d+)\s*:\s*(\S+)\s*$", re.M)


@dataclass(frozen=True, slots=True)
class Topology:
    """The connections between the GPUs of a host. A value is None where the text does not show it.

    Labels are those of the text (`GPU0`). `islands` are sets of GPU indices. If some pairs have
    NVLink, the GPUs of an island are connected by NVLink; otherwise by a path better than the worst
    one. `nvlinks_per_pair` is the lowest number of NVLinks over the pairs that have any.
    """

    gpus: int = 0
    indices: tuple[int, ...] = ()
    interconnect: str = "unknown"  # nvlink | xgmi | pcie | mixed | none | unknown
    nvlink_full_mesh: bool | None = None
    nvlinks_per_pair: int = 0
    worst_path: str | None = None
    islands: tuple[tuple[int, ...], ...] = ()
    numa: Mapping[str, int | None] = field(default_factory=dict)
    cpus: Mapping[str, str] = field(default_factory=dict)
    sockets: int | None = None
    nics: Mapping[str, str] = field(default_factory=dict)
    nearest_nic: Mapping[str, str | None] = field(default_factory=dict)
    mig: tuple[str, ...] = ()
    peer_access: bool | None = None
    digest: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # none for a healthy host with a complete table

    @property
    def numa_nodes(self) -> int:
        """Return the number of NUMA nodes that have a GPU."""
        return len({node for node in self.numa.values() if node is not None})

    @property
    def kind(self) -> str:
        """Return the class of the topology, such as `nvlink-NV18-8`.

        Hosts with the same class are comparable.
        """
        return "-".join(
            (
                self.interconnect,
                self.worst_path or "?",
                "+".join(str(len(island)) for island in self.islands) or "0",
            )
        )

    def to_json(self) -> dict[str, Any]:
        """Return the object that `fleetctl diagnose` prints."""
        return {
            "gpus": self.gpus,
            "interconnect": self.interconnect,
            "nvlink_full_mesh": self.nvlink_full_mesh,
            "nvlinks_per_pair": self.nvlinks_per_pair,
            "worst_path": self.worst_path,
            "islands": [list(island) for island in self.islands],
            "numa": dict(self.numa),
            "numa_nodes": self.numa_nodes,
            "sockets": self.sockets,
            "nics": dict(self.nics),
            "nearest_nic": dict(self.nearest_nic),
            "mig": list(self.mig),
            "peer_access": self.peer_access,
            "class": self.kind,
            "digest": self.digest,
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }


def read_topology(text: str) -> Topology:
    """Read the topology in a text. `gpus` is 0 if the text has no topology. Never raises."""
    clean = strip_decoration(text)
    found = amd_topology.read_amd_matrix(clean) or read_matrix(clean)
    if found is None:
        return Topology(notes=("no device matrix found",))
    labels = {
        index: label
        for label in (*found.columns, *found.rows)
        if (index := gpu_index(label)) is not None
    }
    pairs = {
        pair: link_types.parse_link_type(found.cell(labels[pair[0]], labels[pair[1]]))
        for pair in combinations(sorted(labels), 2)
    }
    numa = _numa_nodes(found, labels) | amd_topology.read_amd_numa(clean)
    return Topology(
        gpus=len(labels),
        indices=tuple(sorted(labels)),
        interconnect=_interconnect(pairs, labels),
        nvlink_full_mesh=_full_mesh(pairs),
        nvlinks_per_pair=min(
            (
                link_types.count_nvlinks(path)
                for path in pairs.values()
                if link_types.count_nvlinks(path)
            ),
            default=0,
        ),
        worst_path=link_types.farthest_link(path for path in pairs.values() if path),
        islands=_islands(pairs, sorted(labels)),
        numa=numa,
        cpus=(cpus := _cpus(found, labels)),
        sockets=_sockets(numa, cpus),
        nics=(nics := _nics(found, clean)),
        nearest_nic={
            labels[index]: _nearest(found, labels[index], nics) for index in sorted(labels)
        }
        if nics
        else {},
        mig=tuple(label for label in found.columns if "MIG" in label.upper()),
        peer_access=_peer_access(found, labels),
        digest=_digest(found),
        notes=tuple(_notes(found, pairs, labels, numa)),
        warnings=tuple(_warnings(found, pairs, labels)),
    )


Pairs = Mapping[tuple[int, int], str | None]
Labels = Mapping[int, str]


def _interconnect(pairs: Pairs, labels: Labels) -> str:
    if len(labels) < 2:
        return "none"
    known = [path for path in pairs.values() if path]
    if len(known) * 2 < len(pairs):
        return "unknown"
    linked = [path for path in known if link_types.is_direct_link(path)]
    if not linked:
        return "pcie"
    return (
        ("nvlink" if link_types.count_nvlinks(linked[0]) else "xgmi")
        if len(linked) == len(known)
        else "mixed"
    )


def _full_mesh(pairs: Pairs) -> bool | None:
    """Return whether every pair has NVLink; None if a pair is missing and all other pairs
    have it.
    """
    if any(path and not link_types.count_nvlinks(path) for path in pairs.values()) or not pairs:
        return False
    return True if all(pairs.values()) else None


def _islands(pairs: Pairs, indices: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    known = {pair: path for pair, path in pairs.items() if path}
    worst = link_types.farthest_link(known.values())
    some_linked = any(link_types.is_direct_link(path) for path in known.values())
    alike = len({link_types.distance(path)[0] for path in known.values()}) <= 1
    island = {index: {index} for index in indices}
    for (first, second), path in known.items():
        near = link_types.is_direct_link(path) if some_linked else path != worst
        if (near or alike) and island[first] is not island[second]:
            island[first] |= island[second]
            island.update(dict.fromkeys(island[second], island[first]))
    return tuple(sorted({tuple(sorted(members)) for members in island.values()}))


def _between(pairs: Pairs, islands: Sequence[tuple[int, ...]]) -> Iterable[str]:
    """Return the paths between GPUs of different islands."""
    home = {index: island for island in islands for index in island}
    return (path for (first, second), path in pairs.items() if path and home[first] != home[second])


def _affinity(found: Matrix, label: str, name: str) -> str:
    row = found.rows.get(label)
    return row.affinities.get(name, "") if row else ""


def _cpus(found: Matrix, labels: Labels) -> dict[str, str]:
    return {
        labels[index]: cpus
        for index in sorted(labels)
        if (cpus := _affinity(found, labels[index], "CPU Affinity"))
    }


def _numa_nodes(found: Matrix, labels: Labels) -> dict[str, int | None]:
    """Return each GPU's NUMA node; None for a GPU that is near several nodes (`0-1`)."""
    words = {
        labels[index]: _affinity(found, labels[index], "NUMA Affinity") for index in sorted(labels)
    }
    return {
        label: int(own[1]) if (own := _OWN_NODE.fullmatch(word)) else None
        for label, word in words.items()
    }


def _sockets(numa: Mapping[str, int | None], cpus: Mapping[str, str]) -> int | None:
    """Count sockets by the NUMA nodes of the GPUs, or else by their CPUs.

    Return None for more than two nodes, since these may be parts of one processor (NPS4).
    """
    nodes = {str(node) for node in numa.values() if node is not None} or set(cpus.values()) - {
        "N/A"
    }
    return len(nodes) if len(numa) > 1 and 0 < len(nodes) <= 2 else None


def _nics(found: Matrix, text: str) -> dict[str, str]:
    names = dict(_NIC_NAME.findall(text))
    labels = [
        label for label in found.columns if gpu_index(label) is None and "MIG" not in label.upper()
    ]
    return {label: names.get(label, label) for label in labels}


def _nearest(found: Matrix, gpu: str, nics: Mapping[str, str]) -> str | None:
    """Return the nearest NIC of a GPU; None if every NIC is on another NUMA node."""
    ways = {
        name: link_types.parse_link_type(found.cell(gpu, label)) for label, name in nics.items()
    }
    near = {name: way for name, way in ways.items() if way and not link_types.crosses_sockets(way)}
    return min(near, key=lambda name: link_types.distance(near[name]), default=None)


def _peer_access(found: Matrix, labels: Labels) -> bool | None:
    words = [found.cell(first, second) for first, second in combinations(labels.values(), 2)]
    access = [word == "OK" for word in words if word in link_types.PEER_ACCESS]
    return all(access) if access else None


def _digest(found: Matrix) -> str:
    """Return a digest of labels and cells only. It does not depend on how the table was printed."""
    cells = sorted(
        f"{first}/{second}={found.cell(first, second)}"
        for first in found.columns
        for second in found.columns
    )
    return hashlib.sha256("\n".join(cells).encode()).hexdigest()[:16]


def _notes(
    found: Matrix, pairs: Pairs, labels: Labels, numa: Mapping[str, int | None]
) -> Iterable[str]:
    if not found.tabs:
        yield "the table is separated by blanks, as copied from a terminal"
    islands = _islands(pairs, sorted(labels))
    worst = link_types.farthest_link(path for path in pairs.values() if path)
    if len(islands) > 1 and worst:
        nearest = min(_between(pairs, islands), key=link_types.distance, default=worst)
        path = worst if nearest == worst else f"{nearest} to {worst}, depending on its GPUs"
        largest = max(map(len, islands))
        yield f"a server with more than the {largest} GPUs of an island communicates over {path}"
    if _interconnect(pairs, labels) == "pcie":
        yield (
            "no NVLink: SGLang's custom all-reduce is off with more than two GPUs; compare only "
            "with hosts of the same class"
        )
    nodes = [node for node in numa.values() if node is not None]
    if nodes != sorted(nodes):
        yield "NUMA ids are not in the order of the GPUs: bind each rank by its own GPU's node"
    if len(set(nodes)) > 2:
        yield (
            f"{len(set(nodes))} NUMA nodes: a processor may be split into several nodes, so the "
            "number of sockets is not known"
        )


def _warnings(found: Matrix, pairs: Pairs, labels: Labels) -> Iterable[str]:
    yield from _note_gaps(found, labels)
    yield from _note_cells(found, pairs, labels)
    yield from _note_nvlinks(pairs)


def _note_gaps(found: Matrix, labels: Labels) -> Iterable[str]:
    missing = sorted(set(range(max(labels, default=0) + 1)) - set(labels))
    if missing and labels:
        yield (
            f"{_gpus(missing)} missing: not given to this container, hidden, or lost; see "
            "`nvidia-smi -L` and dmesg"
        )
    rowless = [index for index, label in sorted(labels.items()) if label not in found.rows]
    if rowless:
        yield (
            f"the text is cut: there is no line for {_gpus(rowless)}; where possible, its links "
            "were read from the other half of the table"
        )
    if any("MIG" in label.upper() for label in found.columns):
        yield "MIG is on: its slices have no peer-to-peer path, so tensor parallelism is impossible"


def _note_cells(found: Matrix, pairs: Pairs, labels: Labels) -> Iterable[str]:
    unknown = sorted(
        {found.cell(labels[a], labels[b]) for (a, b), path in pairs.items() if path is None}
    )
    foreign = [word for word in unknown if word and word not in link_types.PEER_ACCESS]
    if foreign:
        yield f"unknown link type between GPUs: {', '.join(foreign)}"
    if "" in unknown:
        yield "some pairs of GPUs have no cell"
    for (first, second), path in pairs.items():
        back = (
            found.rows[labels[second]].cells.get(labels[first], "")
            if labels[second] in found.rows
            else ""
        )
        there = link_types.parse_link_type(back)
        if there and path and there != path and not found.rows[labels[second]].cut:
            yield (f"GPU{first} to GPU{second} is {path} in one direction and {there} in the other")


def _note_nvlinks(pairs: Pairs) -> Iterable[str]:
    counts = {
        pair: link_types.count_nvlinks(path)
        for pair, path in pairs.items()
        if link_types.count_nvlinks(path)
    }
    most = max(counts.values(), default=0)
    fewer = {pair: count for pair, count in counts.items() if count < most}
    of_one_gpu = bool(fewer) and bool(set.intersection(*map(set, fewer)))
    if fewer and (of_one_gpu or len(fewer) * 2 < len(counts)):
        pairs_text = ", ".join(
            f"GPU{first}-GPU{second} NV{count}" for (first, second), count in fewer.items()
        )
        yield (
            f"fewer NVLinks than the NV{most} of the others: {pairs_text}; a link may be down "
            "(`nvidia-smi nvlink -s`)"
        )


def _gpus(indices: Sequence[int]) -> str:
    return ", ".join(f"GPU{index}" for index in indices)
