"""Owns who is who in a fleet: the roles that certificates carry, the names they stand under, the
files that prove them. Opens no file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

# a DNS name in the controller's certificate: addresses change, this does not
CONTROLLER_NAME = "controller.benchfleet"
ROLE_URI_SCHEME = "benchfleet://"
PARTY_NAME_PATTERN = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)  # of a party; also a file's name
_THE_CONTROLLER = "controller"


class Role(StrEnum):
    """What a certificate's owner is; a URI in its subject alternative names says so."""

    CONTROLLER = "controller"
    AGENT = "agent"
    USER = "user"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one party: the authorities it trusts, its certificate and key, and the list of
    what was revoked (None: nothing was).
    """

    authorities: Path
    certificate: Path
    key: Path
    revoked: Path | None = None


def agent_name(host: str) -> str:
    """The DNS name in the certificate of a host's agent, whatever its address is."""
    return f"{host}.agent.benchfleet"


def role_uri(role: Role, name: str) -> str:
    """`benchfleet://agent/gpu01`: the subject alternative name that carries the role."""
    return f"{ROLE_URI_SCHEME}{role}/{name}"


def parse_role_uri(uri: str) -> tuple[Role, str] | None:
    """The reverse of `role_uri`; None for a URI that is not exactly of this kind. Every controller
    of a fleet has the one name.
    """
    kind, _, name = uri.removeprefix(ROLE_URI_SCHEME).partition("/")
    if (
        kind not in set(Role)
        or not PARTY_NAME_PATTERN.fullmatch(name)
        or uri != role_uri(Role(kind), name)
    ):
        return None
    return None if kind == Role.CONTROLLER and name != _THE_CONTROLLER else (Role(kind), name)
