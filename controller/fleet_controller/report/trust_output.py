"""Formats the certificates of a trust folder: the table, notes on what to do, and JSON."""

from __future__ import annotations

from typing import Any

from fleet_controller.pki.expiry import ExpiringCertificate, expiry_warning
from fleet_controller.pki.trust_status import TrustStatus
from fleet_controller.report.table import Table
from fleet_transport.tls_errors import format_day

JSON_VERSION = 1


def trust_table(trust: TrustStatus) -> Table:
    """Return one row for each certificate."""
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
    """Return lines about what to do, and about revoked certificates."""
    notes = [
        expiry_warning(party, trust.now_unix_s)
        for party in trust.parties
        if party.is_near(trust.now_unix_s)
    ]
    if trust.is_being_replaced:
        waiting = f"; hosts to deploy first: {', '.join(trust.waiting)}" if trust.waiting else ""
        notes.append(
            f"the authority is being replaced{waiting};"
            " `fleetctl trust rotate --authority` finishes this"
        )
    for gone in trust.revoked:
        why = f": {gone.reason}" if gone.reason else ""
        notes.append(f"revoked on {format_day(gone.revoked_unix_s)}: {gone.role} {gone.name}{why}")
    return notes


def trust_json(trust: TrustStatus) -> dict[str, Any]:
    """Return the JSON of the `trust show` contract in docs/json.md."""
    return {
        "version": JSON_VERSION,
        "folder": str(trust.folder),
        "certificates": [
            {"role": party.role, "name": party.name, "expires_unix_s": party.expires_unix_s}
            for party in trust.parties
        ],
        "revoked": [
            {
                "role": gone.role,
                "name": gone.name,
                "revoked_unix_s": gone.revoked_unix_s,
                "reason": gone.reason,
                "fingerprint": gone.fingerprint,
            }
            for gone in trust.revoked
        ],
        "authority_is_being_replaced": trust.is_being_replaced,
        "hosts_to_deploy": list(trust.waiting),
    }


def _days_left(party: ExpiringCertificate, now_unix_s: int) -> str:
    return str((party.expires_unix_s - now_unix_s) // 86400)
