"""Owns which trial has which GPUs and which port; a value that is replaced, never a lock. Binds no
port itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fleet_protos.errors import Conflict


@dataclass(frozen=True, slots=True)
class Allocation:
    """What one trial holds. `trial` is TRIAL/ATTEMPT; `port` 0 until one is promised."""

    trial: str
    gpus: tuple[int, ...]
    port: int = 0


@dataclass(frozen=True, slots=True)
class GpuPool:
    """The GPU indices of a host and what is taken of them. No GPU and no port is in two
    allocations.
    """

    gpus: tuple[int, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    quarantined: Mapping[int, str] = field(
        default_factory=dict
    )  # GPU → why it gets no trial until that is over

    @property
    def free(self) -> tuple[int, ...]:
        """GPU indices that no trial holds and that are not set aside, ascending."""
        taken = {gpu for allocation in self.allocations for gpu in allocation.gpus}
        return tuple(
            gpu for gpu in sorted(self.gpus) if gpu not in taken and gpu not in self.quarantined
        )

    def allocation_of(self, trial: str) -> Allocation | None:
        """What the trial holds, if anything."""
        return next(
            (allocation for allocation in self.allocations if allocation.trial == trial), None
        )


def claim_gpus(pool: GpuPool, trial: str, gpus: int) -> tuple[GpuPool, tuple[int, ...]]:
    """Give the trial `gpus` GPUs, the same again when it asks again. Raises Conflict when too few
    are free.

    An aligned neighbourhood (0-3 or 4-7 for four) comes first: neighbours share switches and NUMA
    nodes, so launches stay comparable.
    """
    held = pool.allocation_of(trial)
    if held and len(held.gpus) == gpus:
        return pool, held.gpus
    if held:
        raise Conflict(
            f"trial {trial} holds {len(held.gpus)} GPUs and asked for {gpus}",
            "end it before it is started differently",
        )
    if gpus > len(pool.gpus):
        raise Conflict(
            f"trial {trial} needs {gpus} GPUs, this host has {len(pool.gpus)}",
            "lower engine.gpus or choose another host",
        )
    if gpus > len(pool.free):
        raise Conflict(
            f"trial {trial} needs {gpus} GPUs, {len(pool.free)} are free; {_explain_shortage(pool)}",
            "wait until a trial is over",
        )
    chosen = _choose(pool.free, gpus)
    return replace(pool, allocations=(*pool.allocations, Allocation(trial, chosen))), chosen


def promise_port(pool: GpuPool, trial: str, port: int) -> GpuPool:
    """Note that the trial's server will listen on `port`, replacing one promised before.

    Raises Conflict when another trial has it, or when this one holds nothing (`take` with 0 GPUs is
    enough).
    """
    held = pool.allocation_of(trial)
    if held is None:
        raise Conflict(f"trial {trial} holds nothing on this host, so it cannot have port {port}")
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
            f"port {port} is promised to trial {other.trial}", "choose another free port"
        )
    rest = tuple(
        replace(allocation, port=port) if allocation is held else allocation
        for allocation in pool.allocations
    )
    return replace(pool, allocations=rest)


def release(pool: GpuPool, trial: str) -> GpuPool:
    """Take back what the trial holds; harmless when it holds nothing."""
    return replace(
        pool,
        allocations=tuple(
            allocation for allocation in pool.allocations if allocation.trial != trial
        ),
    )


def _explain_shortage(pool: GpuPool) -> str:
    """Who has the others, and which are set aside for what."""
    holders = [
        f"{allocation.trial} has {list(allocation.gpus)}"
        for allocation in pool.allocations
        if allocation.gpus
    ]
    reasons = dict.fromkeys(
        reason for gpu, reason in sorted(pool.quarantined.items()) if gpu in pool.gpus
    )
    return ", ".join((*holders, *(f"set aside: {reason}" for reason in reasons)))


def _choose(free: tuple[int, ...], count: int) -> tuple[int, ...]:
    for first in free:
        block = tuple(range(first, first + count))
        if count and first % count == 0 and set(block) <= set(free):
            return block
    return free[:count]
