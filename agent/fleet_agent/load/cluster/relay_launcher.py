"""Starts and stops the relay process through which load hosts reach the server of a trial."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from fleet_agent.load.client.request_body import LoadTarget
from fleet_agent.load.cluster.membership import MembershipFiles
from fleet_protos.errors import LoadError

_START_LIMIT_S: Final = 20.0
_ANSWER_LIMIT_S: Final = 10.0
_LINE_LIMIT: Final = 1 << 24  # room for the lag samples of a long run


@dataclass(slots=True)
class _Relay:
    """Holds a running relay to the server at `server_port`."""

    process: asyncio.subprocess.Process
    server_port: int
    port: int


class RelayLauncher:
    """Runs at most one relay, because a trial measures one server. The relay is a child process in
    the session of this process, and ends when its stdin is closed.
    """

    def __init__(self, address: str, files: MembershipFiles) -> None:
        self._address = address
        self._files = files
        self._relay: _Relay | None = None

    async def make_reachable(self, target: LoadTarget) -> LoadTarget:
        """Return the server with the URL at which other hosts reach it. Raises OSError or LoadError
        if the relay does not start.
        """
        parts = urlsplit(target.url)
        if not _is_loopback(parts.hostname or ""):
            return target
        relay = await self._ensure_relay(parts.port or 80)
        host = f"[{self._address}]" if ":" in self._address else self._address
        return replace(
            target, url=f"https://{host}:{relay.port}{parts.path.rstrip('/')}", in_cluster=True
        )

    async def lags_ns(self) -> tuple[int, ...]:
        """Return how late the relay's event loop woke up, for each sample since the last call.
        Return nothing if there is no relay. Raises LoadError if the relay has ended.
        """
        if self._relay is None:
            return ()
        assert self._relay.process.stdin is not None
        self._relay.process.stdin.write(b"\n")
        return tuple(json.loads(await _read_line(self._relay.process, _ANSWER_LIMIT_S)))

    async def _ensure_relay(self, server_port: int) -> _Relay:
        if (
            self._relay is not None
            and self._relay.server_port == server_port
            and self._relay.process.returncode is None
        ):
            return self._relay
        await self.end()
        files = self._files
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "fleet_agent.load.cluster.relay"),
            *("--address", self._address, "--port", str(server_port)),
            *("--certificate", str(files.certificate), "--key", str(files.key)),
            *("--authority", str(files.authority)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_LIMIT,
        )
        self._relay = _Relay(process, server_port, int(await _read_line(process, _START_LIMIT_S)))
        return self._relay

    async def end(self) -> None:
        """End the relay. Does nothing if no relay runs."""
        relay, self._relay = self._relay, None
        if relay is not None and relay.process.stdin is not None:
            relay.process.stdin.close()
            await relay.process.wait()


async def _read_line(process: asyncio.subprocess.Process, limit_s: float) -> bytes:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(limit_s):
            line = await process.stdout.readline()
    except TimeoutError:
        raise LoadError(f"the relay to the server did not answer within {limit_s:.0f} s") from None
    if not line:
        exit_code = await process.wait()
        raise LoadError(f"the relay to the server ended with exit code {exit_code}")
    return line


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
