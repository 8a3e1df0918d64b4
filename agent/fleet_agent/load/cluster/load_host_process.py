"""Runs on a load host: joins the lead's Ray, provides workers, and ends with the lead, with its
agent or at its hold limit.

It ends at the first of: the end of its stdin, which its agent holds; the end of Ray here, which
follows the end of the lead's Ray; its hold limit. Exit codes: 0 after the end of stdin, 1 it could
not join, 3 Ray has ended, 4 hold limit.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from fleet_agent.load.cluster.membership import (
    JOIN_LIMIT_S,
    MAX_HOLD_S,
    Membership,
    MembershipFiles,
)
from fleet_agent.load.cluster.ray_node import RayNode
from fleet_agent.load.workers.ray_session import end_own_session, wait_for_end_of_ray
from fleet_protos.escape import log_to_stderr

log = logging.getLogger(__name__)

# time for the lead's Ray to start: its agent may get the order a little later than this host's
LEAD_LIMIT_S: Final = 2 * JOIN_LIMIT_S
JOIN_ATTEMPTS: Final = 4  # Ray allows a start 30 s, which may be too short on a busy host
_POLL_S: Final = 0.2
_CONNECT_LIMIT_S: Final = 3.0
DONE, NOT_JOINED, RAY_ENDED, LIMIT = 0, 1, 3, 4


async def _wait_for_lead(membership: Membership) -> bool:
    """Wait until the lead's address accepts connections. Return False if it does not within
    LEAD_LIMIT_S.
    """
    host, _, port = membership.lead_address.rpartition(":")
    try:
        async with asyncio.timeout(LEAD_LIMIT_S):
            while not await _listens(host.strip("[]"), int(port)):  # noqa: ASYNC110 - an open port on another host sends no notification
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return False
    return True


async def _listens(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _serve(node: RayNode) -> int:
    """Join the cluster, stay in it, and return the exit code."""
    membership = node.membership
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(orders), sys.stdin
    )
    async with asyncio.TaskGroup() as tasks:
        ended = tasks.create_task(orders.read())
        staying = tasks.create_task(_stay_joined(node))
        hold_s = min(membership.hold_limit_s or MAX_HOLD_S, MAX_HOLD_S)
        await asyncio.wait((ended, staying), timeout=hold_s, return_when=asyncio.FIRST_COMPLETED)
        code = DONE if ended.done() else staying.result() if staying.done() else LIMIT
        ended.cancel()
        staying.cancel()
    return code


async def _stay_joined(node: RayNode) -> int:
    membership = node.membership
    if not await _wait_for_lead(membership):
        log.error(
            "nothing listened at %s, where trial %s gathers its load, within %.0f s",
            membership.lead_address,
            membership.trial_id,
            LEAD_LIMIT_S,
        )
        return NOT_JOINED
    for left in reversed(range(JOIN_ATTEMPTS)):
        try:
            await _start_in_thread(node)
            break
        except (RuntimeError, OSError) as error:
            log.error(
                "Ray did not join %s: %s%s",
                membership.lead_address,
                error,
                "; trying again" if left else "",
            )
        end_own_session()
    else:
        return NOT_JOINED
    log.info(
        "joined the load of trial %s at %s after %.1f s",
        membership.trial_id,
        membership.lead_address,
        node.started_s,
    )
    ended = await wait_for_end_of_ray(("raylet",))
    log.info("Ray's %s has ended: the lead has ended or lost contact with this host", ended)
    return RAY_ENDED


async def _start_in_thread(node: RayNode) -> None:
    """Start Ray in a daemon thread, which does not block the exit of this process as a pool's
    thread would. Raises RuntimeError or OSError.
    """
    done: Future[None] = Future()

    def start() -> None:
        try:
            node.start()
        except (RuntimeError, OSError) as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    threading.Thread(target=start, daemon=True).start()
    await asyncio.wrap_future(done)


def main() -> None:
    """`python -m fleet_agent.load.cluster.load_host_process --cluster DIR --temporary DIR`."""
    parser = argparse.ArgumentParser(
        description="Lends this host's cores to the load of another host's trial. "
        "Started by fleet-agent."
    )
    parser.add_argument(
        "--cluster", required=True, type=Path, help="the folder with its membership in the cluster"
    )
    parser.add_argument(
        "--temporary",
        required=True,
        help="an empty folder with a short path; removed at the end",
    )
    options = parser.parse_args()
    log_to_stderr()
    files = MembershipFiles(options.cluster)
    node = RayNode(files.read(), files, options.temporary)
    try:
        code = asyncio.run(_serve(node))
    finally:
        node.stop()
        end_own_session()
    os._exit(code)  # does not wait for a thread in which Ray still starts


if __name__ == "__main__":
    main()
