"""Owns what a controller follows, made of a fleet file and a trust folder: who, how reached, how recognised. Connects to none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fleet_controller.core.inventory import Inventory
from fleet_controller.peers import Following, Ways, direct_address, directly, peers, without_tls
from fleet_controller.trust.authority import Authority
from fleet_protos.errors import ConfigError
from fleet_protos.tls import is_local


def following(addresses: Sequence[str], inventory: Inventory | None, trust: Path) -> Following:
    """Every host of the file with the certificates of `trust`, and every address.

    A fleet on this machine alone needs no certificates. Raises ConfigError when others are to be reached and there is no authority.
    """
    everybody = peers(addresses, inventory)
    if inventory is None:
        return Following(everybody)
    file = Path(inventory.file)
    if (trust / "ca.crt").exists():
        return Following(everybody, Ways(directly, Authority.open(trust).agent_files), file, give_up_after_s=inventory.give_up_after_s)
    far = [host.name for host in inventory.hosts if host.through_ssh or not is_local(direct_address(host))]
    if far:
        more = f" and {len(far) - 1} more are" if len(far) > 1 else " is"
        told = f"{inventory.file}: {far[0]}{more} reached by TLS, and {trust} holds no authority"
        raise ConfigError(told, "`fleetctl init` makes it; --trust DIR names another folder")
    return Following(everybody, Ways(directly, without_tls), file, give_up_after_s=inventory.give_up_after_s)
