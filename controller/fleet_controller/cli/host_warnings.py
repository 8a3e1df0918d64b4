"""Owns telling what stands between a controller and its hosts while a job is followed. Mends
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fleet_controller.core.controller_api import Controller

_POLL_S = 1.0


async def report_host_problems(
    controller: Controller, print_line: Callable[[str], None], poll_s: float = _POLL_S
) -> None:
    """For ever, every `look_s` seconds: say once what two looks on end see of a host.

    What passes sooner mends itself, as an agent's restart does.
    """
    before: dict[str, str] = {}
    reported: dict[str, str] = {}
    while True:
        now = {host.host: host.message for host in await controller.hosts() if host.message}
        for host, message in now.items():
            if before.get(host) == message and reported.get(host) != message:
                reported[host] = message
                print_line(f"host {host}: {message}; the job waits for it")
        before = now
        await asyncio.sleep(poll_s)
