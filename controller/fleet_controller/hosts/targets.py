"""Names the hosts and addresses that a controller connects to, and how it reaches the agent of each
host.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fleet_controller.core.give_up import GIVE_UP_AFTER_S
from fleet_controller.core.inventory import FleetHost, Inventory
from fleet_controller.core.quarantine import PROBE_FIRST_S
from fleet_protos.errors import HostUnreachable
from fleet_transport.tls_identity import TlsFiles

# Returns HOST:PORT at which the agent answers now, possibly the end of a tunnel; raises FleetError.
ResolveAddress = Callable[[FleetHost], Awaitable[str]]
# Returns the controller's files for its connection to a host, None for no TLS; raises ConfigError.
TlsFilesOf = Callable[[str], TlsFiles | None]


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """One agent to connect to. `fleet_host` is the host's entry in the fleet file, or None for an
    address that was given alone.
    """

    address: str
    fleet_host: FleetHost | None = None


@dataclass(frozen=True, slots=True)
class HostAccess:
    """The functions that reach and authenticate the agents of a fleet file. Both functions are
    called again for each connection.
    """

    resolve_address: ResolveAddress
    tls_files: TlsFilesOf


def targets_of(
    addresses: Iterable[str], inventory: Inventory | None = None
) -> tuple[AgentTarget, ...]:
    """Return a target for every host of the fleet file, then one for every address."""
    hosts = inventory.hosts if inventory else ()
    return (
        *(AgentTarget(direct_address(host), host) for host in hosts),
        *map(AgentTarget, addresses),
    )


def direct_address(host: FleetHost) -> str:
    """Return HOST:PORT of the host's agent in the form that gRPC expects."""
    return f"[{host.address}]:{host.port}" if ":" in host.address else f"{host.address}:{host.port}"


async def resolve_direct(host: FleetHost) -> str:
    """Return the address of a host's agent. Raises HostUnreachable for a host that is reached
    through a tunnel.
    """
    if host.through_ssh:
        raise HostUnreachable(
            f"host {host.name} is reached through ssh, but this controller opens no tunnels",
            "write `reach: direct` for this host in the fleet file",
        )
    return direct_address(host)


def without_tls(host: str) -> TlsFiles | None:
    """Return None, because agents on this machine need no TLS files."""
    return None


LOCAL_ACCESS = HostAccess(resolve_direct, without_tls)


@dataclass(frozen=True, slots=True)
class FleetTargets:
    """The agents that a controller connects to, and how it treats their hosts.

    - `file`: the fleet file that names the hosts; it is read again when it changes.
    - `probe_first_s`: seconds from the start of a quarantine to the first check.
    - `give_up_after_s`: seconds that a host may be away before the attempts and trials that wait
      for it are closed.
    """

    agents: tuple[AgentTarget, ...] = ()
    access: HostAccess = LOCAL_ACCESS
    file: Path | None = None
    probe_first_s: float = PROBE_FIRST_S
    give_up_after_s: float = GIVE_UP_AFTER_S
