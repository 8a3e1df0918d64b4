"""Owns what a controller follows, made of a fleet file and a trust folder: who, how reached, how recognised. Connects to none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fleet_controller.core.inventory import FleetHost, Inventory
from fleet_controller.hosts.targets import Following, Ways, direct_address, directly, peers
from fleet_controller.pki.authority import Authority
from fleet_protos.errors import ConfigError
from fleet_transport.tls_client import is_local
from fleet_transport.tls_identity import TlsFiles


def following(addresses: Sequence[str], inventory: Inventory | None, trust: Path) -> Following:
    """Every host of the file with the certificates of `trust`, and every address.

    A fleet on this machine alone needs no certificates. Raises ConfigError when others are to be reached and there is no authority.
    """
    everybody = peers(addresses, inventory)
    if inventory is None:
        return Following(everybody)
    far = [host.name for host in inventory.hosts if host.through_ssh or not is_local(direct_address(host))]
    if far and not (trust / "ca.crt").exists():
        more = f" and {len(far) - 1} more are" if len(far) > 1 else " is"
        told = f"{inventory.file}: {far[0]}{more} reached by TLS, and {trust} holds no authority"
        raise ConfigError(told, "`fleetctl init` makes it; --trust DIR names another folder")

    def proofs(host: str) -> TlsFiles | None:
        return Authority.open(trust).agent_files(host) if (trust / "ca.crt").exists() else None

    return Following(everybody, Ways(directly, proofs), Path(inventory.file), give_up_after_s=inventory.give_up_after_s)


@asynccontextmanager
async def reaching(follow: Following) -> AsyncIterator[Following]:
    """While inside, hosts of a fleet file that are behind SSH are reached by tunnels; they end with it."""
    if follow.file is None:
        yield follow
        return
    from fleet_controller.ssh.tunnel import Tunnels

    async with Tunnels() as tunnels:

        async def reach(host: FleetHost) -> str:
            return await tunnels.open_tunnel(host) if host.through_ssh else direct_address(host)

        yield replace(follow, ways=replace(follow.ways, reach=reach))
