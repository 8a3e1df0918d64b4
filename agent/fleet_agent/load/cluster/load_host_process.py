"""Runs on a load host: joins the Ray cluster of the lead and provides workers for the load.

The process ends when its agent closes its stdin, when Ray ends on this host (as it does after the
lead's Ray has ended), or at the hold limit. Exit codes: 0 stdin was closed, 1 the host could not
join, 3 Ray has ended, 4 the hold limit was reached.
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
    """Wait until the lead's address accepts connections. Return False if this takes longer than
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
    """Join the cluster and stay in it. Return the exit code."""
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
            "the lead of the load of trial %s did not listen at %s within %.0f s",
            membership.trial_id,
            membership.lead_address,
            LEAD_LIMIT_S,
        )
        return NOT_JOINED
    for left in reversed(range(JOIN_ATTEMPTS)):
        try:
            await _start_in_thread(node)
            break
        except (RuntimeError, OSError) as error:
            log.error(
                "Ray on this host could not join the Ray of the lead at %s: %s%s",
                membership.lead_address,
                error,
                "; trying again" if left else "",
            )
        end_own_session()
    else:
        return NOT_JOINED
    log.info(
        "this host has joined the load of trial %s, led at %s; Ray started in %.1f s",
        membership.trial_id,
        membership.lead_address,
        node.started_s,
    )
    ended = await wait_for_end_of_ray(("raylet",))
    log.info(
        "Ray's process %s has ended: the lead has ended, or it lost contact with this host", ended
    )
    return RAY_ENDED


async def _start_in_thread(node: RayNode) -> None:
    """Start Ray in a daemon thread. Raises RuntimeError or OSError.

    The thread of a pool would delay the exit of this process; a daemon thread does not.
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
    """Run `python -m fleet_agent.load.cluster.load_host_process --cluster DIR --temporary DIR`."""
    parser = argparse.ArgumentParser(
        description="Lends this host's cores to the load of another host's trial. "
        "Started by fleet-agent."
    )
    parser.add_argument(
        "--cluster",
        required=True,
        type=Path,
        help="the folder with this host's membership in the cluster",
    )
    parser.add_argument(
        "--temporary",
        required=True,
        help="an empty folder with a short path, removed at the end",
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
