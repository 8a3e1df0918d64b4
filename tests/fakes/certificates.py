"""Owns certificates of every wrong kind, made as the fleet's authority makes its own, or as nobody
should. Reads none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fleet_controller.pki.certificate_builder import (
    CertificateAndKey,
    Subject,
    make_authority,
    make_certificate,
)
from fleet_transport.tls_identity import CONTROLLER_NAME, Role, TlsFiles, agent_name


@dataclass(frozen=True, slots=True)
class Maker:
    """One authority, and a folder in which it writes what it is asked for."""

    folder: Path
    authority: CertificateAndKey

    @classmethod
    def new(cls, folder: Path) -> Maker:
        """An authority of its own."""
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder, make_authority(datetime.now(UTC)))

    def issue(self, role: Role, name: str, days: float = 0.0) -> CertificateAndKey:
        """As made `days` from now (negative: ago)."""
        dns_name = {
            Role.AGENT: agent_name(name),
            Role.CONTROLLER: CONTROLLER_NAME,
            Role.USER: f"{name}.user.benchfleet",
        }[role]
        return make_certificate(
            self.authority, Subject(role, name, dns_name), datetime.now(UTC) + timedelta(days=days)
        )

    def files(
        self,
        label: str,
        issued: CertificateAndKey,
        trusted: bytes = b"",
        revoked: Path | None = None,
    ) -> TlsFiles:
        """Put a pair down, with whom its owner trusts (default: this authority)."""
        files = TlsFiles(
            self.folder / f"{label}-ca.crt",
            self.folder / f"{label}.crt",
            self.folder / f"{label}.key",
            revoked,
        )
        files.authorities.write_bytes(trusted or self.authority.certificate_pem)
        files.certificate.write_bytes(issued.certificate_pem)
        files.key.write_bytes(issued.key_pem)
        return files

    def nameless(self) -> CertificateAndKey:
        """Signed by the authority, without any role: as another tool that got hold of the key would
        make it.
        """
        signer = x509.load_pem_x509_certificate(self.authority.certificate_pem)
        signing = serialization.load_pem_private_key(self.authority.key_pem, None)
        assert isinstance(signing, ec.EllipticCurvePrivateKey)
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")]))
            .issuer_name(signer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
            .sign(signing, hashes.SHA256())
        )
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        return CertificateAndKey(
            certificate.public_bytes(pem),
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
        )
