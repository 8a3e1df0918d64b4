"""Runs `fleet-controller` as a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fleet_controller.cli.controller_client import ControllerClient
from fleet_transport.sockets import listen_address

LIMIT_S = 30.0


class Daemon:
    """One `fleet-controller` process on a state folder."""

    def __init__(self, process: asyncio.subprocess.Process, state: Path) -> None:
        self.process = process
        self.state = state

    async def serving(self) -> None:
        """Returns when it says that it listens."""
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            while b"listening on" not in (line := await self.process.stderr.readline()):
                assert line, "it ended before it listened"

    async def ended(self) -> tuple[int, str]:
        """Its exit code and the rest of what it told."""
        async with asyncio.timeout(LIMIT_S):
            _, told = await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode, told.decode()

    def remote(self) -> ControllerClient:
        return ControllerClient(listen_address(self.state, "controller"))


@asynccontextmanager
async def daemon(state: Path, *arguments: str) -> AsyncIterator[Daemon]:
    argv = (sys.executable, "-m", "fleet_controller.app.main", "--state", str(state), *arguments)
    process = await asyncio.create_subprocess_exec(
        *argv, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    try:
        yield Daemon(process, state)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
