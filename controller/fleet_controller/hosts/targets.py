"""Owns whom a controller follows: hosts of the fleet file and single addresses, and how the agent
of each is reached. Connects to none.
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

ResolveAddress = Callable[
    [FleetHost], Awaitable[str]
]  # HOST:PORT at which the agent answers now, a tunnel's end among them; raises FleetError
TlsFilesOf = Callable[
    [str], TlsFiles | None
]  # the controller's files for its line to a host; None: without TLS; raises ConfigError


@dataclass(frozen=True, slots=True)
class AgentTarget:
    """One agent to follow. `known`: what the fleet file says of its host; None for an address that
    was given alone.
    """

    address: str
    fleet_host: FleetHost | None = None


@dataclass(frozen=True, slots=True)
class HostAccess:
    """How the agents of a fleet file are reached and recognised; both are asked anew for each
    connection.
    """

    resolve_address: ResolveAddress
    tls_files: TlsFilesOf


def targets_of(
    addresses: Iterable[str], inventory: Inventory | None = None
) -> tuple[AgentTarget, ...]:
    """Every host of the file, then every address."""
    hosts = inventory.hosts if inventory else ()
    return (
        *(AgentTarget(direct_address(host), host) for host in hosts),
        *map(AgentTarget, addresses),
    )


def direct_address(host: FleetHost) -> str:
    """HOST:PORT of its agent, as gRPC takes it."""
    return f"[{host.address}]:{host.port}" if ":" in host.address else f"{host.address}:{host.port}"


async def resolve_direct(host: FleetHost) -> str:
    """For controllers that make no tunnels. Raises HostUnreachable for a host that is behind one."""
    if host.through_ssh:
        raise HostUnreachable(
            f"{host.name} is reached through ssh, and this controller makes no tunnels",
            "write `reach: direct`",
        )
    return direct_address(host)


def without_tls(host: str) -> TlsFiles | None:
    """For agents on this machine alone: nothing else is reached without TLS."""
    return None


LOCAL_ACCESS = HostAccess(resolve_direct, without_tls)


@dataclass(frozen=True, slots=True)
class FleetTargets:
    """Whom a controller follows, and how it gets there. `file`: the fleet file that names hosts,
    read again when it changes.

    `probe_first_s`: from setting a host aside for its failures to the first look at it.
    `give_up_after_s`: how long one may be away before what waits for it is closed.
    """

    agents: tuple[AgentTarget, ...] = ()
    access: HostAccess = LOCAL_ACCESS
    file: Path | None = None
    probe_first_s: float = PROBE_FIRST_S
    give_up_after_s: float = GIVE_UP_AFTER_S
