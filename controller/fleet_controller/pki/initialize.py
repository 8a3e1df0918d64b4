"""Creates a trust folder with all its files, or nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fleet_controller.pki import trust_folder as files
from fleet_controller.pki.authority import Authority
from fleet_controller.pki.authority_files import lock_path
from fleet_controller.pki.certificate_builder import (
    CertificateAndKey,
    Subject,
    make_authority,
    make_certificate,
)
from fleet_controller.pki.issued_certificates import (
    IssuedCertificate,
    IssuedCertificates,
    issued_json,
)
from fleet_transport.certificate import parse_certificates
from fleet_transport.revocation_list import revocations_json
from fleet_transport.tls_identity import CONTROLLER_NAME, Role


def init_trust_folder(folder: Path, user: str, *, replace: bool = False) -> bool:
    """Create a trust folder with an authority and certificates for the controller and for `user`.
    Return False if there is a trust folder, which is kept.

    With `replace`, an existing folder is first renamed to FOLDER.replaced-TIME. Raises ConfigError,
    Conflict.
    """
    with files.exclusive_lock(lock_path(folder)):
        files.remove_leftovers(folder)
        exists = folder.exists() and any(folder.iterdir())
        if exists and replace:
            folder.rename(
                folder.with_name(f"{folder.name}.replaced-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}")
            )
        if not exists or replace:
            files.create_folder(folder, _content(user, datetime.now(UTC)))
            return True
    Authority.open(folder)
    return False


def _content(user: str, now: datetime) -> dict[str, tuple[bytes, bool]]:
    authority = make_authority(now)
    controller = make_certificate(
        authority, Subject(Role.CONTROLLER, "controller", CONTROLLER_NAME), now
    )
    person = make_certificate(authority, Subject(Role.USER, user, f"{user}.user.benchfleet"), now)
    signer = parse_certificates(authority.certificate_pem)[0].fingerprint
    ledger = IssuedCertificates()
    for role, name, issued in (
        (Role.CONTROLLER, "controller", controller),
        (Role.USER, user, person),
    ):
        certificate = parse_certificates(issued.certificate_pem)[0]
        ledger = ledger.with_entry(
            IssuedCertificate(
                certificate.fingerprint,
                role,
                name,
                int(now.timestamp()),
                certificate.not_after_unix_s,
                signer,
            )
        )
    pairs: dict[str, CertificateAndKey] = {
        "ca": authority,
        "controller": controller,
        "user": person,
    }
    return {
        **{f"{name}.key": (issued.key_pem, True) for name, issued in pairs.items()},
        **{f"{name}.crt": (issued.certificate_pem, False) for name, issued in pairs.items()},
        "issued.json": (issued_json(ledger).encode(), False),
        "revoked.json": (revocations_json(()).encode(), False),
    }
