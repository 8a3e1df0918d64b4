"""Sets up the load cluster of an attempt: the Ray cluster of the hosts that send its load. The lead
and each load host join the cluster, and load hosts are released at its end.

Tokens and keys exist only in memory, so a new controller knows none of them. An attempt that has
begun needs them no more, because its cluster ends with its lead. For an attempt that has not begun,
the new controller sets up the cluster again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from fleet_controller.core.gang import LOOPBACK
from fleet_controller.hosts.agent_client import AgentClient, LoadPart
from fleet_controller.pki.load_cluster_ca import LoadClusterAuthority
from fleet_controller.planning.load_host_assignment import load_host_limit_s, shards_per_host
from fleet_protos.errors import ConfigError, FleetError, HostUnreachable, LoadError
from fleet_protos.trial_types import TrialSpec

log = logging.getLogger(__name__)

AttemptKey = tuple[str, int]
# How long an attempt waits for a load host before it fails, which frees its lead's host.
LOAD_HOST_WAIT_S = 30.0


class LoadHostConnection(Protocol):
    """The attributes of a host's connection that this module uses."""

    agent: AgentClient
    connected: bool

    @property
    def meeting_host(self) -> str:
        """Return the address at which other hosts reach the host."""
        ...


@dataclass(slots=True)
class _LoadCluster:
    """The token and certificate authority of one attempt, and the hosts that joined."""

    authority: LoadClusterAuthority
    since_s: float  # monotonic
    joined: set[str] = field(default_factory=set)


class LoadClusters:
    """The load clusters of one controller. All methods must be called on the controller's event
    loop.
    """

    def __init__(self, connections: Mapping[str, LoadHostConnection]) -> None:
        self._connections = connections
        self._clusters: dict[AttemptKey, _LoadCluster] = {}

    async def set_up(self, spec: TrialSpec) -> None:
        """Make the lead and every load host join the load cluster of an attempt. A second call for
        the same attempt is harmless.

        Raises HostUnreachable, Conflict, ConfigError. Raises LoadError if a load host has not
        answered for LOAD_HOST_WAIT_S seconds.
        """
        key = (spec.trial_id, spec.attempt)
        cluster = self._clusters.get(key) or self._clusters.setdefault(
            key, _LoadCluster(LoadClusterAuthority(datetime.now(UTC)), time.monotonic())
        )
        lead = await self._join(cluster, spec, spec.host, 0, "")
        try:
            for host, count in shards_per_host(spec.load).items():
                await self._join(cluster, spec, host, count, lead)
        except HostUnreachable as error:
            if time.monotonic() - cluster.since_s > LOAD_HOST_WAIT_S:
                raise LoadError(f"the load hosts could not be set up: {error.message}") from error
            raise

    async def tear_down(self, key: AttemptKey) -> None:
        """Release the hosts of an attempt that is over. A host that cannot be reached leaves on its
        own when its time limit ends.
        """
        cluster = self._clusters.pop(key, None)
        joined = (
            [self._connections[host] for host in cluster.joined if host in self._connections]
            if cluster
            else []
        )
        for connection in joined:
            try:
                if connection.connected:
                    await connection.agent.leave_load(*key)
            except FleetError as error:
                log.info(
                    "a load host could not be released after trial %s: %s",
                    key[0],
                    error.message,
                )

    def active_keys(self) -> tuple[AttemptKey, ...]:
        """Return the attempts that have a load cluster."""
        return tuple(self._clusters)

    async def _join(
        self, cluster: _LoadCluster, spec: TrialSpec, host: str, count: int, lead: str
    ) -> str:
        connection = self._connections.get(host)
        if connection is None or not connection.connected:
            raise HostUnreachable(f"host {host} is not connected", "the trial waits for this host")
        address = await self._address(spec, host, connection)
        issued = cluster.authority.issue(host, address)
        part = LoadPart(
            trial_id=spec.trial_id,
            attempt=spec.attempt,
            host=host,
            address=address,
            lead_address=lead,
            cores=count,
            hold_limit_s=load_host_limit_s(spec),
            token=cluster.authority.token,
            authority=cluster.authority.authority_pem,
            certificate=issued.certificate_pem,
            key=issued.key_pem,
        )
        answer = await connection.agent.join_load(part)
        cluster.joined.add(host)
        return answer

    async def _address(self, spec: TrialSpec, host: str, connection: LoadHostConnection) -> str:
        """Return the IP address at which the other hosts of the attempt reach a host. Raises
        ConfigError, HostUnreachable.
        """
        remote = [
            other
            for other in (spec.host, *spec.load.hosts)
            if self._meeting_host(other) != LOOPBACK
        ]
        address = connection.meeting_host
        if address == LOOPBACK and remote:
            raise ConfigError(
                f"no address is known at which other hosts reach host {host}: "
                f"its agent is at {connection.agent.address}",
                f"start the agent of host {host} with --label address=HOST, "
                "where HOST is its address for the other hosts",
            )
        return await resolve_ip(address)

    def _meeting_host(self, host: str) -> str:
        connection = self._connections.get(host)
        return connection.meeting_host if connection else LOOPBACK


async def resolve_ip(host: str) -> str:
    """Return an IP address of a host name, preferably IPv4. Raises HostUnreachable for an unknown
    name.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host.strip("[]"), None, type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise HostUnreachable(
            f"the host name {host} is not known on this machine: {error.strerror}",
            "write the host's IP address in the fleet file",
        ) from error
    addresses = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return str(addresses[0][4][0])
