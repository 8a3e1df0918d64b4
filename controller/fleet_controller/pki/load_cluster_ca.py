"""Makes the token and the certificate authority that protect the load cluster of one attempt.

They are made for the attempt, kept in memory and sent to its hosts over the fleet's TLS. They are
never written to a file and need no revocation, because they end with the attempt.
"""

from __future__ import annotations

import ipaddress
import secrets
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fleet_controller.pki.certificate_builder import SKEW, CertificateAndKey, make_authority

ATTEMPT_CERTIFICATE_LIFE: Final = timedelta(days=3)  # longer than any attempt can take


class LoadClusterAuthority:
    """The token and the certificate authority of one attempt."""

    def __init__(self, now: datetime) -> None:
        self._authority = make_authority(now)
        self._now = now
        self.token = secrets.token_hex(32)

    @property
    def authority_pem(self) -> bytes:
        """Return the certificate of the authority as PEM."""
        return self._authority.certificate_pem

    def issue(self, host: str, address: str) -> CertificateAndKey:
        """Issue a certificate for a host at an IP address. It is valid for both server and client,
        because Ray uses the same certificate on both sides and checks the address.

        Raises ValueError for an invalid address.
        """
        signer = x509.load_pem_x509_certificate(self._authority.certificate_pem)
        signer_key = serialization.load_pem_private_key(self._authority.key_pem, password=None)
        assert isinstance(signer_key, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"load {host}"[:64])]))
            .issuer_name(signer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - SKEW)
            .not_valid_after(self._now + ATTEMPT_CERTIFICATE_LIFE)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]),
                critical=False,
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .sign(signer_key, hashes.SHA256())
        )
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        return CertificateAndKey(certificate.public_bytes(serialization.Encoding.PEM), pem)
