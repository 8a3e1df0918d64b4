"""Chooses the CPUs of a server and writes them as words of a command line.

Sources: taskset(1) and numactl(8). SGLang's `--numa-node` takes one node for each GPU that the
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
    """The CPUs of a host as the kernel reports them.

    `node_of_gpu` leaves out a GPU whose node is unknown. `programs`: the full path of taskset and
    numactl, as far as they are installed.
    """

    nodes: Mapping[int, frozenset[int]] = field(default_factory=dict)
    allowed: frozenset[int] = frozenset()
    node_of_gpu: Mapping[int, int] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CpuChoice:
    """The CPUs chosen for one server; empty if it is not bound.

    `nodes`: the NUMA nodes of its GPUs. `per_gpu`: the node of each GPU, in the order of the GPUs.
    """

    cpus: frozenset[int] = frozenset()
    nodes: tuple[int, ...] = ()
    per_gpu: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CpuBinding:
    """What a binding adds to a command: words before it, and SGLang arguments after it."""

    prefix: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


def choose_cpus(asked: str, gpus: tuple[int, ...], host: HostCpus) -> CpuChoice:
    """Return the CPUs that `none`, `auto` or a list like `0-31,64-95` means on this host.

    Raises ConfigError for a list that cannot be read, or that holds CPUs which the agent may not
    use.
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
        raise ConfigError(
            f"engine.cpu_binding asks for CPU {format_cpu_list(missing)}, but the agent on this"
            f" host may use only {format_cpu_list(host.allowed)}",
            "choose among those, or allow the agent more (its cgroup or systemd unit limits it)",
        )
    return cpus


def _cpus_near_gpus(gpus: tuple[int, ...], host: HostCpus) -> CpuChoice:
    """Return the CPUs of the nodes of these GPUs.

    Returns no CPUs if there are no GPUs, if a GPU's node is unknown, or if all GPUs are at one node
    that holds every allowed CPU.
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
    """Return how a command on this host is bound to the chosen CPUs.

    `version`: of the SGLang that is launched, None if unknown. `own_nodes`: the job sets
    `numa_node` itself. For GPUs of several nodes SGLang binds each of its processes to the node of
    its GPU, if its version can. Raises ConfigError if the host has no program to bind with.
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
            "engine.cpu_binding needs taskset or numactl, and neither is installed on this host",
            "install util-linux, or set engine.cpu_binding: none",
        )
    return CpuBinding((host.programs["taskset"], "--cpu-list", format_cpu_list(choice.cpus)))


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the CPUs of a list in the format of the kernel and taskset; empty if the text is not
    one.
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
