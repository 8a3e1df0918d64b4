"""Splits the load of a run into the shares of its shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fleet_agent.load.client.request_body import LoadTarget
from fleet_agent.load.messages import LoadRequest
from fleet_agent.load.workers.shard_plan import ShardPlan
from fleet_agent.load.workload.arrivals import replay_offsets_s, send_offsets_s
from fleet_agent.load.workload.prompts import WARM_UP, PromptDraw
from fleet_agent.load.workload.request_plan import MOST_MEANS, build_request_plan
from fleet_protos.attachment import Trace, unpack

LIMIT_GRACE_S: Final = 30.0
WARM_LEAST: Final = 3
WARM_MOST_USERS: Final = 8


def plan_shards(
    request: LoadRequest, target: LoadTarget, *, warm: bool, shard_count: Callable[[int], int]
) -> list[ShardPlan]:
    """Split the load over as many workers as `shares` gives for its users. Arrivals become wall
    time; the timeout of a request is that.

    Raises ValueError for a workload that is neither a closed nor an open loop, or whose files did
    not come with it.
    """
    workload = request.workload
    files = {ref: unpack(word) for ref, word in request.files.items()}
    draw = PromptDraw(
        workload.prompts, request.seed, WARM_UP if warm else request.run_index, request.salt_scope
    )
    whole = ShardPlan(
        target=target, api=workload.api or "chat", draw=draw, output_tokens=workload.output_tokens, requests=0,
        request_plan=build_request_plan(workload, draw, files), timeout_s=workload.request_timeout_s,
        turns=max(1, workload.turns), think_s=workload.think_s / request.time_scale,
    )  # fmt: skip
    if warm:
        users = workload.concurrency or WARM_MOST_USERS
        whole = replace(whole, requests=request.requests or max(WARM_LEAST, users))
        return _split(whole, min(users, _sessions(whole)), shard_count)
    if workload.concurrency > 0:
        whole = replace(
            whole, requests=workload.requests or max(WARM_LEAST, 2 * workload.concurrency)
        )
        return _split(whole, min(workload.concurrency, _sessions(whole)), shard_count)
    trace = files.get(workload.trace)
    offsets = (
        replay_offsets_s(trace, workload)
        if isinstance(trace, Trace)
        else send_offsets_s(workload, request.seed, request.run_index)
    )
    whole = replace(
        whole,
        requests=len(offsets),
        offsets_s=tuple(offset / request.time_scale for offset in offsets),
    )
    return _split(whole, 0, shard_count)


def _split(whole: ShardPlan, users: int, shard_count: Callable[[int], int]) -> list[ShardPlan]:
    """Shares of equal size: request n goes to share n modulo their number, each user to one share."""
    step = shard_count(users)
    waves = whole.turns * _waves(_sessions(whole), users)
    longest_s = whole.timeout_s + MOST_MEANS * whole.think_s
    limit_s = (whole.offsets_s[-1] if whole.offsets_s else 0.0) + waves * longest_s + LIMIT_GRACE_S
    whole = replace(whole, limit_s=limit_s)
    return [
        replace(
            whole,
            first=index,
            step=step,
            concurrency=(users + step - 1 - index) // step,
            users=users,
        )
        for index in range(step)
    ]


def _sessions(whole: ShardPlan) -> int:
    """How many sessions there are; requests that belong to none are one each."""
    return -(-whole.requests // whole.turns)


def _waves(requests: int, users: int) -> int:
    """How many requests follow one another at most; those of an open loop wait for none."""
    return -(-requests // users) if users else 1
