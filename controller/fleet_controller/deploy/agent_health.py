"""Owns the question whether a host's agent is the one that was deployed, asked over gRPC with
certificates. Mends nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from fleet_controller.core.inventory import FleetHost
from fleet_controller.hosts.agent_client import AgentClient, AgentInfo
from fleet_controller.hosts.targets import direct_address
from fleet_controller.pki.authority import Authority
from fleet_controller.ssh.ssh_connection import SshConnection
from fleet_controller.ssh.tunnel import Forwarder
from fleet_protos.errors import FleetError, HostUnreachable
from fleet_transport.tls_identity import agent_name

_PAUSE_S = 0.15
StillRunning = Callable[[], Awaitable[bool]]


class Unhealthy(FleetError):
    """The agent does not answer, or another one does."""


async def wait_healthy(
    client: AgentClient,
    host: FleetHost,
    version: str,
    timeout_s: float,
    is_still_running: StillRunning,
) -> AgentInfo:
    """The agent's answer once it is the right one. Raises Unhealthy after `timeout_s`, or as soon
    as it is known not to come.
    """
    loop = asyncio.get_running_loop()
    deadline, problem, checked_at = loop.time() + timeout_s, "", loop.time()
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                info = await client.describe()
            return _require_identity(info, host, version)
        except (HostUnreachable, TimeoutError) as error:
            problem = getattr(error, "message", "") or problem or "no answer in time"
        if loop.time() > deadline:
            raise Unhealthy(
                f"the agent of {host.name} did not answer within {timeout_s:.0f} s: {problem}"
            )
        if loop.time() - checked_at > 1.0:
            checked_at = loop.time()
            if not await is_still_running():
                raise Unhealthy(f"the agent of {host.name} ended as soon as it was started")
        await asyncio.sleep(_PAUSE_S)


def _require_identity(info: AgentInfo, host: FleetHost, version: str) -> AgentInfo:
    if info.host != host.name:
        raise Unhealthy(f"the agent at {host.name} calls itself {info.host}")
    if info.version != version:
        raise Unhealthy(
            f"the agent of {host.name} says that it is version {info.version}, not {version}"
        )
    return info


class DeployedAgent:
    """A client for one host's agent, through SSH where the fleet file says so; to be closed."""

    def __init__(self, host: FleetHost, authority: Authority, connection: SshConnection) -> None:
        self._folder = TemporaryDirectory(prefix="benchfleet-") if host.through_ssh else None
        self._forwarder = (
            Forwarder(Path(self._folder.name) / "agent.sock", lambda: connection, host.port)
            if self._folder
            else None
        )
        address = self._forwarder.address if self._forwarder else direct_address(host)
        self.client = AgentClient(address, authority.agent_files(host.name), agent_name(host.name))

    async def close(self) -> None:
        """Hang up."""
        await self.client.close()
        if self._forwarder is not None and self._folder is not None:
            await asyncio.to_thread(self._forwarder.close)
            self._folder.cleanup()
