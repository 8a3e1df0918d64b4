"""Reads which certificates a trust folder has and when they expire, for `fleetctl trust show`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fleet_controller.pki.authority import Authority
from fleet_controller.pki.expiry import ExpiringCertificate
from fleet_protos.errors import ConfigError
from fleet_transport.certificate import parse_certificates
from fleet_transport.revocation_list import Revocation


@dataclass(frozen=True, slots=True)
class TrustStatus:
    """The state of a trust folder at `now_unix_s`.

    `waiting` holds the hosts that must be deployed before the authority can be replaced.
    """

    folder: Path
    now_unix_s: int
    parties: tuple[ExpiringCertificate, ...]
    revoked: tuple[Revocation, ...] = ()
    waiting: tuple[str, ...] = ()
    is_being_replaced: bool = False


def read_trust_status(folder: Path, now_unix_s: int) -> TrustStatus:
    """Read the trust folder of an authority or of a user.

    Raises ConfigError if the folder has no certificates or one of them cannot be read.
    """
    if (folder / "ca.key").exists() or not (folder / "user.crt").exists():
        authority = Authority.open(folder)
        waiting = authority.hosts_to_redeploy() if authority.is_being_replaced else ()
        return TrustStatus(
            folder,
            now_unix_s,
            authority.expiring(now_unix_s),
            authority.revoked(),
            waiting,
            authority.is_being_replaced,
        )
    parties = [
        ExpiringCertificate("authority", "", known.not_after_unix_s)
        for known in Authority(folder).trusted_authorities()[:1]
    ]
    try:
        parties += [
            ExpiringCertificate(str(own.role), own.name, own.not_after_unix_s)
            for own in parse_certificates((folder / "user.crt").read_bytes())
        ]
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot use {folder / 'user.crt'}: {error}",
            "create a new certificate with `fleetctl trust issue` on the controller's machine",
        ) from error
    return TrustStatus(folder, now_unix_s, tuple(parties))
