"""Defines a shard's share of a run, its limits and its result, as values that Ray can carry."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from fleet_agent.load.client.request_body import LoadTarget
from fleet_agent.load.results.chunk_store import HELD_CHUNKS
from fleet_agent.load.results.request_columns import Columns
from fleet_agent.load.workload.prompts import PromptDraw
from fleet_agent.load.workload.request_plan import RequestPlan


@dataclass(frozen=True, slots=True)
class ShardLimits:
    """How much a shard keeps in memory; beyond, it works as it goes and its loop's lag tells."""

    prepared: int = (
        1 << 16
        # requests whose bytes are made before the start; those of later ones as they are sent, in some
        # 20 µs
    )
    prepared_bytes: int = 128 << 20  # of all of them together, as prompts may be long
    raw_bytes: int = 192 << 20  # answers that are decoded after the run; later ones at once
    # times and token counts of chunks; earlier ones go into a file, where the plan names a folder
    # for it
    chunks: int = HELD_CHUNKS


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """One shard's share: the requests `first, first + step, …` below `requests`. Wall seconds;
    nothing here is model time.
    """

    target: LoadTarget
    api: str
    draw: PromptDraw
    output_tokens: int
    requests: int
    request_plan: RequestPlan | None = (
        None  # what the requests ask; none: the prompts of `draw`, each answered by `output_tokens`
    )
    first: int = 0
    step: int = 1
    concurrency: int = 0  # slots of this shard (closed loop)
    users: int = 0  # slots of all shards; 0: there is no other shard
    turns: int = 1  # requests of a session, which one slot sends one after the other (closed loop)
    think_s: float = 0.0  # mean of what passes between them
    offsets_s: tuple[float, ...] = ()  # of all requests of the run (open loop)
    timeout_s: float = 600.0
    cancel_path: str = ""  # a file that appears here ends the shard
    limit_s: float = (
        0.0  # the shard ends itself so long after its start; 0: only its requests have limits
    )
    spill_folder: str = (
        ""  # of this host, where chunks go that are too many for memory; empty: they stay in memory
    )
    limits: ShardLimits = field(default_factory=ShardLimits)

    @property
    def numbers(self) -> range:
        """The requests of this shard; of sessions the first request of each."""
        return range(self.first * self.turns, self.requests, self.step * self.turns)

    @property
    def spill_path(self) -> str:
        """This shard's own file in the folder; empty: it has none."""
        return os.path.join(self.spill_folder, f"{self.first}.chunks") if self.spill_folder else ""


@dataclass(frozen=True, slots=True)
class ShardResult:
    """What one shard measured. `lags_ns` are the samples of its loop's lag beyond the timer's
    resolution; `start_ns` is perf_counter_ns.

    `expired`: it ended itself at its limit, as cancelled. `cpu_s`: seconds of a core that it used
    from its start to its last answer; `decode_s`: those that it took afterwards to decode what was
    left. `reads`: how often it took something from a connection, in `reads_in`, which is c or
    python.
    """

    columns: Columns
    started_unix_ns: int
    lags_ns: tuple[int, ...]
    cancelled: bool
    start_ns: int = 0
    expired: bool = False
    cpu_s: float = 0.0
    decode_s: float = 0.0
    reads: int = 0
    reads_in: str = ""


def with_cancel(plan: ShardPlan, path: str) -> ShardPlan:
    """The plan of a shard that ends when a file appears at `path`."""
    return replace(plan, cancel_path=path)
