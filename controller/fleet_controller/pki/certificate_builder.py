"""Makes keys and certificates with EC P-256 and SHA-256.

A certificate is valid from one day before it is made, because the clocks of hosts differ.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fleet_transport.tls_identity import Role, role_uri

SKEW = timedelta(days=1)
AUTHORITY_LIFE = timedelta(days=3650)
CERTIFICATE_LIFE = timedelta(days=365)
_LONGEST_COMMON_NAME = 64  # X.520


@dataclass(frozen=True, slots=True)
class CertificateAndKey:
    """A certificate and its key, both as PEM."""

    certificate_pem: bytes
    key_pem: bytes


@dataclass(frozen=True, slots=True)
class Subject:
    """The party that a certificate is for. `addresses` holds further DNS names and IP addresses."""

    role: Role
    name: str
    dns_name: str
    addresses: tuple[str, ...] = ()


def make_authority(now: datetime) -> CertificateAndKey:
    """Make a new self-signed certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(
                NameOID.COMMON_NAME, f"benchfleet authority {now.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
            )
        ]
    )
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, key.public_key(), now, AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return CertificateAndKey(certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key))


def make_certificate(
    authority: CertificateAndKey, subject: Subject, now: datetime
) -> CertificateAndKey:
    """Make a certificate with a new key. It is signed by the authority and expires no later than
    the authority's certificate.

    Raises ValueError for an unusable authority, name or address.
    """
    signer, signer_key = (
        x509.load_pem_x509_certificate(authority.certificate_pem),
        _load_key(authority.key_pem),
    )
    key = ec.generate_private_key(ec.SECP256R1())
    common = x509.NameAttribute(
        NameOID.COMMON_NAME, f"{subject.role} {subject.name}"[:_LONGEST_COMMON_NAME]
    )
    names = [
        x509.UniformResourceIdentifier(role_uri(subject.role, subject.name)),
        x509.DNSName(subject.dns_name),
    ]
    usages = x509.ExtendedKeyUsage(_USAGES[subject.role])
    certificate = (
        _builder(
            x509.Name([common]),
            signer.subject,
            key.public_key(),
            now,
            min(CERTIFICATE_LIFE, signer.not_valid_after_utc - now),
        )
        .add_extension(
            x509.SubjectAlternativeName([*names, *_addresses(subject.addresses)]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usages, critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()),
            critical=False,
        )
        .sign(signer_key, hashes.SHA256())
    )
    return CertificateAndKey(certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key))


_USAGES = {  # an agent's key is not accepted as a client's, a user's key not as a server's
    Role.AGENT: [ExtendedKeyUsageOID.SERVER_AUTH],
    Role.CONTROLLER: [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH],
    Role.USER: [ExtendedKeyUsageOID.CLIENT_AUTH],
}


def key_matches(certificate_pem: bytes, key_pem: bytes) -> bool:
    """Return whether the key belongs to the certificate. Raises ValueError if one of them is
    invalid.
    """
    return (
        x509.load_pem_x509_certificate(certificate_pem).public_key()
        == _load_key(key_pem).public_key()
    )


def is_issued_by(certificate_pem: bytes, authority_pem: bytes) -> bool:
    """Return whether the authority signed the certificate. Raises ValueError if one of the two
    texts is not a certificate.
    """
    authority = x509.load_pem_x509_certificate(authority_pem)
    try:
        x509.load_pem_x509_certificate(certificate_pem).verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):  # another signer, name or kind of key
        return False
    return True


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + life)
    )


def _addresses(addresses: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    for address in dict.fromkeys(addresses):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        except ValueError:
            if address.endswith(".benchfleet"):
                raise ValueError(f"{address}: names in .benchfleet are reserved") from None
            names.append(x509.DNSName(address))
    return names


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"the key cannot be used: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not an elliptic-curve key")
    return key


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
