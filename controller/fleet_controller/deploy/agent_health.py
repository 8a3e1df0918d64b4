"""Checks over gRPC that the agent of a host is the agent that was deployed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from fleet_controller.core.inventory import FleetHost
from fleet_controller.hosts.agent_client import AgentClient
from fleet_controller.hosts.targets import direct_address
from fleet_controller.pki.authority import Authority
from fleet_controller.ssh.ssh_connection import SshConnection
from fleet_controller.ssh.tunnel import Forwarder
from fleet_protos.errors import FleetError, HostUnreachable
from fleet_protos.v1.agent_values import AgentInfo
from fleet_transport.tls_identity import agent_name

_PAUSE_S = 0.15
StillRunning = Callable[[], Awaitable[bool]]


class Unhealthy(FleetError):
    """The agent does not answer, or another agent does."""


async def wait_healthy(
    client: AgentClient,
    host: FleetHost,
    version: str,
    timeout_s: float,
    is_still_running: StillRunning,
) -> AgentInfo:
    """Wait until the agent answers with the right host name and version, and return its answer.

    Raises Unhealthy if this takes longer than `timeout_s`, if another agent answers, or if the
    agent has ended.
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
                raise Unhealthy(f"the agent of {host.name} ended right after its start")
        await asyncio.sleep(_PAUSE_S)


def _require_identity(info: AgentInfo, host: FleetHost, version: str) -> AgentInfo:
    if info.host != host.name:
        raise Unhealthy(f"the agent at {host.name} reports the host name {info.host}")
    if info.version != version:
        raise Unhealthy(f"the agent of {host.name} reports version {info.version}, not {version}")
    return info


class DeployedAgent:
    """A client for the agent of one host, through SSH if the fleet file says that. Close the client
    after use.
    """

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
        """Close the client and its tunnel."""
        await self.client.close()
        if self._forwarder is not None and self._folder is not None:
            await asyncio.to_thread(self._forwarder.close)
            self._folder.cleanup()
