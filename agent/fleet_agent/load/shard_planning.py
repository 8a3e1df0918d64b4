"""Splits the load of a run into one share for each shard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fleet_agent.load.client.request_body import LoadTarget
from fleet_agent.load.messages import LoadRequest
from fleet_agent.load.workers.shard_plan import ShardPlan
from fleet_agent.load.workload.arrivals import replay_offsets_s, send_offsets_s
from fleet_agent.load.workload.prompts import WARM_UP, PromptDraw
from fleet_agent.load.workload.request_plan import MAX_THINK_MEANS, build_request_plan
from fleet_protos.attachment import Trace, unpack

LIMIT_GRACE_S: Final = 30.0  # beyond the longest time that the requests may take
WARM_UP_MIN_REQUESTS: Final = 3
WARM_UP_MAX_USERS: Final = 8


def plan_shards(
    request: LoadRequest, target: LoadTarget, *, warm: bool, shard_count: Callable[[int], int]
) -> list[ShardPlan]:
    """Return the shares of a run or warm-up, one for each shard. `shard_count` returns the number
    of shards for a number of users.

    Arrival times are converted from model time to wall time; the request timeout is already in wall
    time. Raises ValueError if the workload is neither a closed nor an open loop. Raises ValueError
    if the request lacks a file that the workload names.
    """
    workload = request.workload
    files = {ref: unpack(word) for ref, word in request.files.items()}
    draw = PromptDraw(
        workload.prompts, request.seed, WARM_UP if warm else request.run_index, request.salt_scope
    )
    plan = ShardPlan(
        target=target,
        api=workload.api or "chat",
        draw=draw,
        output_tokens=workload.output_tokens,
        requests=0,
        request_plan=build_request_plan(workload, draw, files),
        timeout_s=workload.request_timeout_s,
        turns=max(1, workload.turns),
        think_s=workload.think_s / request.time_scale,
    )
    if warm:
        users = workload.concurrency or WARM_UP_MAX_USERS
        plan = replace(plan, requests=request.requests or max(WARM_UP_MIN_REQUESTS, users))
        return _split(plan, min(users, _session_count(plan)), shard_count)
    if workload.concurrency > 0:
        plan = replace(
            plan, requests=workload.requests or max(WARM_UP_MIN_REQUESTS, 2 * workload.concurrency)
        )
        return _split(plan, min(workload.concurrency, _session_count(plan)), shard_count)
    trace = files.get(workload.trace)
    offsets = (
        replay_offsets_s(trace, workload)
        if isinstance(trace, Trace)
        else send_offsets_s(workload, request.seed, request.run_index)
    )
    plan = replace(
        plan,
        requests=len(offsets),
        offsets_s=tuple(offset / request.time_scale for offset in offsets),
    )
    return _split(plan, 0, shard_count)


def _split(plan: ShardPlan, users: int, shard_count: Callable[[int], int]) -> list[ShardPlan]:
    """Return shares of equal size. With n shares, request i belongs to share i modulo n. Each user
    belongs to one share.
    """
    step = shard_count(users)
    waves = plan.turns * _wave_count(_session_count(plan), users)
    longest_s = plan.timeout_s + MAX_THINK_MEANS * plan.think_s
    limit_s = (plan.offsets_s[-1] if plan.offsets_s else 0.0) + waves * longest_s + LIMIT_GRACE_S
    plan = replace(plan, limit_s=limit_s)
    return [
        replace(
            plan,
            first=index,
            step=step,
            concurrency=(users + step - 1 - index) // step,
            users=users,
        )
        for index in range(step)
    ]


def _session_count(plan: ShardPlan) -> int:
    """Return the number of sessions. A request without a session counts as a session of its own."""
    return -(-plan.requests // plan.turns)


def _wave_count(requests: int, users: int) -> int:
    """Return the largest number of requests that one user sends in a row. In an open loop it is 1,
    because no request waits for another.
    """
    return -(-requests // users) if users else 1
