"""Defines the roles in certificates, the names under which certificates are issued, and the TLS
files of one party.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

# the DNS name in the controller's certificate: addresses change, this name does not
CONTROLLER_NAME = "controller.benchfleet"
ROLE_URI_SCHEME = "benchfleet://"
# the name of a party, which is also used as a file name
PARTY_NAME_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_THE_CONTROLLER = "controller"


class Role(StrEnum):
    """The role of a certificate's owner. A URI among the subject alternative names carries it."""

    CONTROLLER = "controller"
    AGENT = "agent"
    USER = "user"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of one party: the authorities that it trusts, its certificate, its key, and the
    revocation list. `revoked` is None if the party has no revocation list.
    """

    authorities: Path
    certificate: Path
    key: Path
    revoked: Path | None = None


def agent_name(host: str) -> str:
    """Return the DNS name in the certificate of a host's agent. The name does not depend on the
    host's address.
    """
    return f"{host}.agent.benchfleet"


def role_uri(role: Role, name: str) -> str:
    """Return the subject alternative name that carries a role,
    such as `benchfleet://agent/gpu01`.
    """
    return f"{ROLE_URI_SCHEME}{role}/{name}"


def parse_role_uri(uri: str) -> tuple[Role, str] | None:
    """Return the role and the name in a URI that `role_uri` made. Return None for any other URI.

    All controllers of a fleet share one name. A controller's URI with another name is invalid.
    """
    kind, _, name = uri.removeprefix(ROLE_URI_SCHEME).partition("/")
    if (
        kind not in set(Role)
        or not PARTY_NAME_PATTERN.fullmatch(name)
        or uri != role_uri(Role(kind), name)
    ):
        return None
    return None if kind == Role.CONTROLLER and name != _THE_CONTROLLER else (Role(kind), name)
