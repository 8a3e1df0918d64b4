"""Assigns GPUs and ports to trials. A pool is never changed but replaced, so it needs no lock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fleet_protos.errors import Conflict


@dataclass(frozen=True, slots=True)
class Allocation:
    """The GPUs and the port that one trial holds. `trial` is TRIAL/ATTEMPT. `port` is 0 until a
    port is assigned.
    """

    trial: str
    gpus: tuple[int, ...]
    port: int = 0


@dataclass(frozen=True, slots=True)
class GpuPool:
    """Holds the GPU indices of a host and the allocations of its trials. No GPU and no port is in
    two allocations.
    """

    gpus: tuple[int, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    quarantined: Mapping[int, str] = field(default_factory=dict)  # GPU → why it gets no trial

    @property
    def free(self) -> tuple[int, ...]:
        """The indices of the GPUs that no trial holds and that are not quarantined, ascending."""
        taken = {gpu for allocation in self.allocations for gpu in allocation.gpus}
        return tuple(
            gpu for gpu in sorted(self.gpus) if gpu not in taken and gpu not in self.quarantined
        )

    def allocation_of(self, trial: str) -> Allocation | None:
        """Return the allocation of a trial. Return None if the trial holds nothing."""
        return next(
            (allocation for allocation in self.allocations if allocation.trial == trial), None
        )


def claim_gpus(pool: GpuPool, trial: str, gpus: int) -> tuple[GpuPool, tuple[int, ...]]:
    """Assign `gpus` GPUs to the trial. Return the new pool and the indices of these GPUs. A
    repeated call returns the same GPUs.

    Prefers an aligned range of indices (0-3 or 4-7 for four GPUs), because its GPUs share switches
    and a NUMA node. This keeps launches comparable. Raises Conflict if too few GPUs are free.
    Raises Conflict if the trial already holds another number of GPUs.
    """
    held = pool.allocation_of(trial)
    if held and len(held.gpus) == gpus:
        return pool, held.gpus
    if held:
        raise Conflict(
            f"trial {trial} asks for {gpus} GPUs but already holds {len(held.gpus)}",
            "end the trial before you start it with another number of GPUs",
        )
    if gpus > len(pool.gpus):
        raise Conflict(
            f"trial {trial} needs {gpus} GPUs, but this host has {len(pool.gpus)}",
            "lower engine.gpus or choose another host",
        )
    if gpus > len(pool.free):
        free, shortage = len(pool.free), _explain_shortage(pool)
        raise Conflict(
            f"trial {trial} needs {gpus} GPUs, but {free} are free; {shortage}",
            "wait until another trial is over",
        )
    chosen = _choose(pool.free, gpus)
    return replace(pool, allocations=(*pool.allocations, Allocation(trial, chosen))), chosen


def promise_port(pool: GpuPool, trial: str, port: int) -> GpuPool:
    """Assign `port` to the trial's server. It replaces a port that was assigned before.

    Raises Conflict if another trial has the port. Raises Conflict if the trial has no allocation:
    call `claim_gpus` first, with 0 GPUs if the trial needs none.
    """
    held = pool.allocation_of(trial)
    if held is None:
        raise Conflict(f"trial {trial} has no allocation here, so it cannot get port {port}")
    other = next(
        (
            allocation
            for allocation in pool.allocations
            if allocation.port == port and allocation is not held
        ),
        None,
    )
    if other:
        raise Conflict(
            f"port {port} is assigned to trial {other.trial}", "choose another free port"
        )
    rest = tuple(
        replace(allocation, port=port) if allocation is held else allocation
        for allocation in pool.allocations
    )
    return replace(pool, allocations=rest)


def release(pool: GpuPool, trial: str) -> GpuPool:
    """Return the pool without the allocation of the trial."""
    return replace(
        pool,
        allocations=tuple(
            allocation for allocation in pool.allocations if allocation.trial != trial
        ),
    )


def _explain_shortage(pool: GpuPool) -> str:
    """Return a text that lists which trials hold GPUs, and why GPUs are quarantined."""
    holders = [
        f"{allocation.trial} has {list(allocation.gpus)}"
        for allocation in pool.allocations
        if allocation.gpus
    ]
    reasons = dict.fromkeys(
        reason for gpu, reason in sorted(pool.quarantined.items()) if gpu in pool.gpus
    )
    return ", ".join((*holders, *(f"quarantined: {reason}" for reason in reasons)))


def _choose(free: tuple[int, ...], count: int) -> tuple[int, ...]:
    for first in free:
        block = tuple(range(first, first + count))
        if count and first % count == 0 and set(block) <= set(free):
            return block
    return free[:count]
