"""Makes the targets of a controller from a fleet file and a trust folder. Opens SSH tunnels to
hosts that need them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fleet_controller.core.inventory import FleetHost, Inventory
from fleet_controller.hosts.targets import (
    FleetTargets,
    HostAccess,
    direct_address,
    resolve_direct,
    targets_of,
)
from fleet_controller.pki.authority import Authority
from fleet_protos.errors import ConfigError
from fleet_transport.tls_client import is_local
from fleet_transport.tls_identity import TlsFiles


def fleet_targets(
    addresses: Sequence[str], inventory: Inventory | None, trust: Path
) -> FleetTargets:
    """Return a target for every host of the fleet file and for every address. Connections to the
    hosts use the certificates of the folder `trust`.

    A fleet on this machine alone needs no certificates. Raises ConfigError if there are hosts on
    other machines and there is no certificate authority.
    """
    targets = targets_of(addresses, inventory)
    if inventory is None:
        return FleetTargets(targets)
    remote = [
        host.name
        for host in inventory.hosts
        if host.through_ssh or not is_local(direct_address(host))
    ]
    if remote and not (trust / "ca.crt").exists():
        first, more = remote[0], len(remote) - 1
        hosts = f"{first} and {more} more" if more else first
        raise ConfigError(
            f"{inventory.file}: hosts on other machines ({hosts}) need TLS, "
            f"but there is no certificate authority in {trust}",
            "`fleetctl init --fleet` creates one; --trust DIR names another folder",
        )

    def tls_files(host: str) -> TlsFiles | None:
        return Authority.open(trust).agent_files(host) if (trust / "ca.crt").exists() else None

    return FleetTargets(
        targets,
        HostAccess(resolve_direct, tls_files),
        Path(inventory.file),
        give_up_after_s=inventory.give_up_after_s,
    )


@asynccontextmanager
async def open_tunnels(targets: FleetTargets) -> AsyncIterator[FleetTargets]:
    """Reach hosts behind SSH through tunnels in the with block. Its end closes the tunnels."""
    if targets.file is None:
        yield targets
        return
    from fleet_controller.ssh.tunnel import Tunnels

    async with Tunnels() as tunnels:

        async def resolve_address(host: FleetHost) -> str:
            return await tunnels.open_tunnel(host) if host.through_ssh else direct_address(host)

        yield replace(targets, access=replace(targets.access, resolve_address=resolve_address))
