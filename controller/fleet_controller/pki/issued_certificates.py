"""Keeps the list of issued certificates, and converts it to and from the text of issued.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from fleet_transport.tls_identity import Role

VERSION = 1
KEPT_S = 86400 * 30  # how long an expired certificate stays on the list


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """One certificate on the list.

    - `authority`: fingerprint of the authority that signed the certificate.
    - `renew`: a user requested a new certificate for this party.
    - `installed`: the host's agent was seen with this certificate. Without this mark, a certificate
      does not count when an old authority is dropped.
    """

    fingerprint: str
    role: Role
    name: str
    issued_unix_s: int
    expires_unix_s: int
    authority: str
    renew: bool = False
    installed: bool = False


@dataclass(frozen=True, slots=True)
class IssuedCertificates:
    """All issued certificates, the newest last."""

    entries: tuple[IssuedCertificate, ...] = ()

    def issued_to(self, role: Role, name: str = "") -> tuple[IssuedCertificate, ...]:
        """Return the certificates of the party with this role and name. If `name` is empty, return
        those of all parties with this role.
        """
        return tuple(
            entry for entry in self.entries if entry.role is role and name in ("", entry.name)
        )

    def newest(self) -> tuple[IssuedCertificate, ...]:
        """Return the newest certificate of each party."""
        return tuple({(entry.role, entry.name): entry for entry in self.entries}.values())

    def with_entry(self, entry: IssuedCertificate) -> IssuedCertificates:
        """Return the list with one more entry. Certificates that expired more than 30 days before
        the new entry was issued are dropped.
        """
        kept = (
            known for known in self.entries if known.expires_unix_s > entry.issued_unix_s - KEPT_S
        )
        return IssuedCertificates((*kept, entry))

    def with_installed(self, fingerprint: str) -> IssuedCertificates:
        """Return the list with this certificate marked as installed."""
        return IssuedCertificates(
            tuple(
                replace(entry, installed=True) if entry.fingerprint == fingerprint else entry
                for entry in self.entries
            )
        )

    def with_renewal_requested(self, role: Role, name: str) -> IssuedCertificates:
        """Return the list with all certificates of this party marked for renewal."""
        return IssuedCertificates(
            tuple(
                replace(entry, renew=True) if (entry.role, entry.name) == (role, name) else entry
                for entry in self.entries
            )
        )


def issued_json(ledger: IssuedCertificates) -> str:
    """Return the text of issued.json for the list."""
    return (
        json.dumps(
            {"version": VERSION, "issued": [asdict(entry) for entry in ledger.entries]}, indent=1
        )
        + "\n"
    )


def read_issued(text: bytes) -> IssuedCertificates:
    """Return the list that the text of issued.json holds. Raises ValueError that says what is
    wrong.
    """
    try:
        value = json.loads(text)
        if (version := value["version"]) != VERSION:
            raise ValueError(f"it has version {version!r}, but only version {VERSION} is known")
        return IssuedCertificates(tuple(_issued_certificate(entry) for entry in value["issued"]))
    except KeyError as error:
        raise ValueError(f"{error} is missing") from error
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _issued_certificate(value: Mapping[str, Any]) -> IssuedCertificate:
    return IssuedCertificate(
        fingerprint=str(value["fingerprint"]),
        role=Role(value["role"]),
        name=str(value["name"]),
        issued_unix_s=int(value["issued_unix_s"]),
        expires_unix_s=int(value["expires_unix_s"]),
        authority=str(value["authority"]),
        renew=bool(value.get("renew", False)),
        installed=bool(value.get("installed", False)),
    )
