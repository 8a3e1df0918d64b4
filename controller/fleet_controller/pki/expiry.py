"""Says whether a certificate expires soon, and writes the warning about it."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_transport.tls_errors import format_day

RENEW_BEFORE_S = 30 * 86400


@dataclass(frozen=True, slots=True)
class ExpiringCertificate:
    """A certificate in use with its expiry time. `role` is authority, controller, agent or user."""

    role: str
    name: str
    expires_unix_s: int

    def is_near(self, now_unix_s: float) -> bool:
        """Return whether the certificate expires within 30 days or has expired."""
        return self.expires_unix_s - now_unix_s < RENEW_BEFORE_S


def expiry_warning(party: ExpiringCertificate, now_unix_s: float) -> str:
    """Return one line that says when the certificate expires and how to renew it."""
    owner = {"agent": f"host {party.name}", "user": f"user {party.name}"}.get(
        party.role, f"the {party.role}"
    )
    advice = {
        "agent": f"`fleetctl deploy {party.name}` renews it",
        "user": f"`fleetctl trust issue {party.name}` issues a new one",
        "controller": "`fleetctl trust rotate` renews it",
    }.get(party.role, "`fleetctl trust rotate --authority` begins to replace it")
    left_days = int((party.expires_unix_s - now_unix_s) // 86400)
    day = format_day(party.expires_unix_s)
    expires = f"expires in {left_days} days, on {day}" if left_days >= 0 else f"expired on {day}"
    return f"the certificate of {owner} {expires}: {advice}"
