"""Reads fingerprint, names, role and validity from the DER bytes of a certificate. Signatures are
not checked here; OpenSSL verifies them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from fleet_transport.tls_identity import ROLE_URI_SCHEME, Role, parse_role_uri

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_ALTERNATIVE_NAMES = b"\x06\x03\x55\x1d\x11"  # OID 2.5.29.17, RFC 5280 4.2.1.6
_BASIC_CONSTRAINTS = b"\x06\x03\x55\x1d\x13"  # OID 2.5.29.19
_OCTETS, _UTC_TIME, _GENERALIZED_TIME, _BOOLEAN = 0x04, 0x17, 0x18, 0x01
_VERSION, _EXTENSIONS, _DNS, _URI = 0xA0, 0xA3, 0x82, 0x86


@dataclass(frozen=True, slots=True)
class Certificate:
    """Holds what one certificate says. `fingerprint` is the SHA-256 of its DER bytes in hex.

    If the certificate does not name exactly one valid role, `role` is None and `name` is empty.
    """

    fingerprint: str
    not_before_unix_s: int
    not_after_unix_s: int
    role: Role | None = None
    name: str = ""
    dns_names: tuple[str, ...] = ()
    is_authority: bool = False

    @property
    def owner(self) -> str:
        """The owner in words, for messages: `user bob`, `agent gpu01`, `the controller`, `an
        authority`, or `nobody of a fleet`.
        """
        if self.role is None:
            return "an authority" if self.is_authority else "nobody of a fleet"
        return "the controller" if self.role is Role.CONTROLLER else f"{self.role} {self.name}"


def parse_certificates(pem: bytes) -> tuple[Certificate, ...]:
    """Return every certificate in a PEM text, in order. Raises ValueError if a certificate is
    damaged, or if the text has no certificate.
    """
    found = tuple(parse_certificate(der) for der in der_blocks(pem))
    if not found:
        raise ValueError("there is no certificate in this file")
    return found


def der_blocks(pem: bytes) -> Iterator[bytes]:
    """Yield the DER bytes of each certificate in a PEM text. Raises ValueError if a certificate is
    damaged.
    """
    for body in _PEM.findall(pem):
        try:
            yield base64.b64decode(b"".join(body.split()), validate=True)
        except binascii.Error as error:
            raise ValueError(f"a certificate in this file is damaged: {error}") from error


def parse_certificate(der: bytes) -> Certificate:
    """Return what a DER certificate says (RFC 5280 4.1). Raises ValueError if it is damaged."""
    try:
        fields = list(_children(_first_child(_first_child(der))))
        at = 1 if fields[0][0] == _VERSION else 0
        times = [_parse_time(tag, value) for tag, value in _children(fields[at + 3][1])]
        extensions = next((value for tag, value in fields if tag == _EXTENSIONS), b"")
        names = list(_alternative_names(extensions)) if extensions else []
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError("the certificate is truncated or damaged") from error
    of_a_fleet = [
        text for tag, text in names if tag == _URI and text.lower().startswith(ROLE_URI_SCHEME)
    ]
    role, name = (parse_role_uri(of_a_fleet[0]) if len(of_a_fleet) == 1 else None) or (None, "")
    dns_names = tuple(text for tag, text in names if tag == _DNS)
    return Certificate(
        hashlib.sha256(der).hexdigest(),
        times[0],
        times[1],
        role,
        name,
        dns_names,
        _is_authority(extensions),
    )


def _read_tlv(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag at the offset `at`, and the offsets at which its value begins and ends."""
    tag, length, at = data[at], data[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length, at = int.from_bytes(data[at : at + count], "big"), at + count
    if at + length > len(data):
        raise IndexError
    return tag, at, at + length


def _first_child(data: bytes) -> bytes:
    _, start, end = _read_tlv(data, 0)
    return data[start:end]


def _children(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        tag, start, at = _read_tlv(data, at)
        yield tag, data[start:at]


def _parse_time(tag: int, value: bytes) -> int:
    layout = (
        {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}[tag]
        if tag in (_UTC_TIME, _GENERALIZED_TIME)
        else ""
    )
    return int(datetime.strptime(value.decode("ascii"), layout).replace(tzinfo=UTC).timestamp())


def _extension(extensions: bytes, oid: bytes) -> bytes:
    """Return the value of one extension. Empty if the certificate has no such extension."""
    for _, extension in _children(_first_child(extensions)) if extensions else ():
        if extension.startswith(oid):
            return next((value for tag, value in _children(extension) if tag == _OCTETS), b"")
    return b""


def _alternative_names(extensions: bytes) -> Iterator[tuple[int, str]]:
    value = _extension(extensions, _ALTERNATIVE_NAMES)
    for tag, text in _children(_first_child(value)) if value else ():
        if tag in (_DNS, _URI):
            yield tag, text.decode("ascii")


def _is_authority(extensions: bytes) -> bool:
    value = _extension(extensions, _BASIC_CONSTRAINTS)
    return bool(value) and any(
        tag == _BOOLEAN and flag != b"\0" for tag, flag in _children(_first_child(value))
    )
