"""Chooses the CPUs of a server and builds the words of the command line that bind it to them.

Sources: taskset(1) and numactl(8). SGLang's `--numa-node` takes one NUMA node for each GPU that the
server sees (server_args.py, numa_utils.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleet_knowledge.release import Release, VersionRange
from fleet_protos.errors import ConfigError

NUMA_NODE_OPTION = VersionRange(
    "0.5.2"
)  # by the wheels: absent in 0.5.1, present in 0.5.2 - 0.5.23
_RANGE = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?")
_MOST_CPUS = 65536


@dataclass(frozen=True, slots=True)
class HostCpus:
    """Holds the CPUs of a host, as the kernel reports them.

    `nodes`: the CPUs of each NUMA node.
    `allowed`: the CPUs that the agent may use.
    `node_of_gpu`: the NUMA node of each GPU, without the GPUs whose node is unknown.
    `programs`: the full paths of taskset and numactl, where they are installed.
    """

    nodes: Mapping[int, frozenset[int]] = field(default_factory=dict)
    allowed: frozenset[int] = frozenset()
    node_of_gpu: Mapping[int, int] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CpuChoice:
    """Holds the CPUs chosen for one server. It is empty for a server that is not bound to CPUs.

    `nodes`: the NUMA nodes of the server's GPUs.
    `per_gpu`: the NUMA node of each GPU, in the order of the GPUs.
    """

    cpus: frozenset[int] = frozenset()
    nodes: tuple[int, ...] = ()
    per_gpu: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CpuBinding:
    """Holds what binds a server to CPUs: words before its command and SGLang arguments after it."""

    prefix: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


def choose_cpus(asked: str, gpus: tuple[int, ...], host: HostCpus) -> CpuChoice:
    """Return the CPUs that `none`, `auto` or a list like `0-31,64-95` means on this host.

    Raises ConfigError if the list cannot be read. Raises ConfigError if it contains a CPU that the
    agent may not use.
    """
    if asked in ("", "none"):
        return CpuChoice()
    return (
        _cpus_near_gpus(gpus, host)
        if asked == "auto"
        else CpuChoice(_parse_requested_cpus(asked, host))
    )


def _parse_requested_cpus(asked: str, host: HostCpus) -> frozenset[int]:
    cpus = parse_cpu_list(asked)
    if not cpus:
        raise ConfigError(
            f"engine.cpu_binding: `{asked}` is not a list of CPUs",
            "set it to none, auto, or a list like 0-31,64-95",
        )
    if missing := cpus - host.allowed:
        refused, allowed = format_cpu_list(missing), format_cpu_list(host.allowed)
        raise ConfigError(
            f"engine.cpu_binding asks for CPU {refused}, but the agent on this host may use only"
            f" CPU {allowed}",
            f"choose from CPU {allowed}, or let the agent's cgroup or systemd unit use more CPUs",
        )
    return cpus


def _cpus_near_gpus(gpus: tuple[int, ...], host: HostCpus) -> CpuChoice:
    """Return the CPUs of the NUMA nodes to which these GPUs are attached.

    Return no CPUs if there are no GPUs, or if the node of a GPU is unknown. Also return no CPUs if
    one node has all the GPUs and all CPUs that the agent may use: binding would change nothing.
    """
    if not gpus or any(gpu not in host.node_of_gpu for gpu in gpus):
        return CpuChoice()
    per_gpu = tuple(host.node_of_gpu[gpu] for gpu in gpus)
    nodes = tuple(sorted(set(per_gpu)))
    cpus = frozenset().union(*(host.nodes.get(node, frozenset()) for node in nodes)) & host.allowed
    several = len(nodes) > 1
    return (
        CpuChoice(cpus, nodes, per_gpu)
        if cpus and (several or cpus != host.allowed)
        else CpuChoice()
    )


def bind_cpus(
    choice: CpuChoice, host: HostCpus, version: Release | None, *, own_nodes: bool = False
) -> CpuBinding:
    """Return the words that bind a server on this host to the chosen CPUs.

    `version`: the version of SGLang to launch; None if unknown.
    `own_nodes`: True if the job itself sets `numa_node`.

    If the GPUs are on several NUMA nodes and this version of SGLang has `--numa-node`, SGLang binds
    each of its processes to the node of the process's GPU. Raises ConfigError if the host has no
    program that can bind a server.
    """
    if not choice.cpus or own_nodes:
        return CpuBinding()
    if len(choice.nodes) > 1 and version is not None and NUMA_NODE_OPTION.contains(version):
        return CpuBinding(words=("--numa-node", *map(str, choice.per_gpu)))
    if choice.nodes and choice.cpus == host.allowed:
        return CpuBinding()
    if (
        len(choice.nodes) == 1
        and "numactl" in host.programs
        and choice.cpus == host.nodes[choice.nodes[0]]
    ):
        node = choice.nodes[0]
        return CpuBinding((host.programs["numactl"], f"--cpunodebind={node}", f"--membind={node}"))
    if "taskset" not in host.programs:
        raise ConfigError(
            "engine.cpu_binding needs taskset or numactl, and this host has neither of the two",
            "install util-linux, or set engine.cpu_binding: none",
        )
    return CpuBinding((host.programs["taskset"], "--cpu-list", format_cpu_list(choice.cpus)))


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the CPUs in a list that has the format of the kernel and taskset. Return nothing if
    the text has another format.
    """
    cpus: set[int] = set()
    for part in text.strip().split(","):
        found = _RANGE.fullmatch(part.strip())
        if not found:
            return frozenset()
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last >= _MOST_CPUS:
            return frozenset()
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Return a set of CPUs as a list like `0-3,8`."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
