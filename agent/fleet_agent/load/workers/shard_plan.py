"""Defines a shard's share of a run, its limits and its result, as plain values that Ray
can send.
"""

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
    """Holds how much a shard keeps in memory. Beyond these limits it builds, decodes or writes
    during the run, which makes its event loop wake up late.
    """

    # requests that are built before the start; later ones are built when they are sent, in about
    # 20 µs
    prepared: int = 1 << 16
    prepared_bytes: int = 128 << 20  # total size of the prepared requests, as prompts may be long
    raw_bytes: int = 192 << 20  # answers that are decoded after the run; later ones at once
    # chunks (times and token counts); older ones go into a file if the plan names a folder
    chunks: int = HELD_CHUNKS


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Holds one shard's share: the requests `first`, `first + step` and so on, below `requests`.
    All seconds are wall seconds, never model time.
    """

    target: LoadTarget
    api: str
    draw: PromptDraw
    output_tokens: int
    requests: int
    # contents of the requests; None: the prompts of `draw` with `output_tokens` each
    request_plan: RequestPlan | None = None
    first: int = 0
    step: int = 1
    concurrency: int = 0  # slots of this shard (closed loop)
    users: int = 0  # slots of all shards; 0: this is the only shard
    turns: int = 1  # requests per session, which one slot sends one after another (closed loop)
    think_s: float = 0.0  # mean pause between the turns of a session
    offsets_s: tuple[float, ...] = ()  # of all requests of the run (open loop)
    timeout_s: float = 600.0
    cancel_path: str = ""  # a file that appears here ends the shard
    # the shard ends itself this long after its start; 0: only its requests have timeouts
    limit_s: float = 0.0
    # folder on this host for chunks beyond the memory limit; empty: they stay in memory
    spill_folder: str = ""
    limits: ShardLimits = field(default_factory=ShardLimits)

    @property
    def numbers(self) -> range:
        """Return the numbers of the shard's requests. With sessions, only the first request of each
        session is listed.
        """
        return range(self.first * self.turns, self.requests, self.step * self.turns)

    @property
    def spill_path(self) -> str:
        """Return the shard's own file in the spill folder; empty without such a folder."""
        return os.path.join(self.spill_folder, f"{self.first}.chunks") if self.spill_folder else ""


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Holds what one shard measured.

    `lags_ns`: how late the event loop woke up, beyond the resolution of its timers.
    `start_ns`: the start, as perf_counter_ns.
    `expired`: True if the shard ended itself at its time limit; `cancelled` is then also True.
    `cpu_s`: the CPU seconds from the start to the last answer.
    `decode_s`: the wall seconds that decoding took after the last answer.
    `reads`: how often the shard read from a connection.
    `reads_in`: the language of the code that read, c or python.
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
    """Return the plan of a shard that ends when the file `path` appears."""
    return replace(plan, cancel_path=path)
