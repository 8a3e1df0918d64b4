"""Owns what a trust folder looks like: the table, its JSON, what is to be done. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet_controller.pki.authority import Authority
from fleet_controller.pki.expiry import ExpiringCertificate, expiry_warning
from fleet_controller.report.table import Table
from fleet_protos.errors import ConfigError
from fleet_transport.certificate import parse_certificates
from fleet_transport.revocation_list import Revocation
from fleet_transport.tls_errors import format_day

JSON_VERSION = 1


@dataclass(frozen=True, slots=True)
class TrustStatus:
    """A trust folder as it is now. `waiting`: hosts to be deployed before the authority is
    replaced.
    """

    folder: Path
    now_unix_s: int
    parties: tuple[ExpiringCertificate, ...]
    revoked: tuple[Revocation, ...] = ()
    waiting: tuple[str, ...] = ()
    is_being_replaced: bool = False


def read_trust_status(folder: Path, now_unix_s: int) -> TrustStatus:
    """What there is: of an authority, or of a user's own folder. Raises ConfigError."""
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
            "`fleetctl trust issue` on the controller's machine",
        ) from error
    return TrustStatus(folder, now_unix_s, tuple(parties))


def trust_table(trust: TrustStatus) -> Table:
    """One row a certificate."""
    rows = tuple(
        (
            party.role,
            party.name,
            format_day(party.expires_unix_s),
            _days_left(party, trust.now_unix_s),
        )
        for party in trust.parties
    )
    return Table(("role", "name", "ends (UTC)", "days left"), rows, frozenset({"days left"}))


def trust_notes(trust: TrustStatus) -> list[str]:
    """What is to be done, and what was revoked."""
    notes = [
        expiry_warning(party, trust.now_unix_s)
        for party in trust.parties
        if party.is_near(trust.now_unix_s)
    ]
    if trust.is_being_replaced:
        waiting = f"; to be deployed: {', '.join(trust.waiting)}" if trust.waiting else ""
        notes.append(
            f"the authority is being replaced{waiting}; `fleetctl trust rotate --authority` ends it"
        )
    for gone in trust.revoked:
        why = f": {gone.reason}" if gone.reason else ""
        notes.append(f"revoked on {format_day(gone.revoked_unix_s)}: {gone.role} {gone.name}{why}")
    return notes


def trust_json(trust: TrustStatus) -> dict[str, Any]:
    """The `trust show` contract of docs/json.md."""
    return {
        "version": JSON_VERSION,
        "folder": str(trust.folder),
        "certificates": [{"role": party.role, "name": party.name, "expires_unix_s": party.expires_unix_s} for party in trust.parties],
        "revoked": [
            {
                "role": gone.role, "name": gone.name, "revoked_unix_s": gone.revoked_unix_s, "reason": gone.reason,
                "fingerprint": gone.fingerprint,
            }
            for gone in trust.revoked
        ],
        "authority_is_being_replaced": trust.is_being_replaced,
        "hosts_to_deploy": list(trust.waiting),
    }  # fmt: skip


def _days_left(party: ExpiringCertificate, now_unix_s: int) -> str:
    return str((party.expires_unix_s - now_unix_s) // 86400)
