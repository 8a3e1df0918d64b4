"""Reads and writes the files that an authority keeps in its trust folder."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from fleet_controller.pki.issued_certificates import IssuedCertificates, issued_json, read_issued
from fleet_controller.pki.trust_folder import exclusive_lock, write_file
from fleet_protos.errors import ConfigError
from fleet_transport.certificate import Certificate, parse_certificates
from fleet_transport.revocation_list import Revocation, read_revocations, revocations_json
from fleet_transport.tls_identity import PARTY_NAME_PATTERN, TlsFiles

if TYPE_CHECKING:
    from fleet_controller.pki.certificate_builder import CertificateAndKey

_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


class AuthorityFiles:
    """The files of a trust folder. Each call reads its files again. A caller that writes must hold
    the lock.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def lock(self) -> AbstractContextManager[None]:
        """Return the lock for changes of the folder."""
        return exclusive_lock(lock_path(self.folder))

    # Authorities

    def authorities_pem(self) -> bytes:
        """Return the content of ca.crt: the certificates of the trusted authorities, the newest
        first.
        """
        return _read(self.folder / "ca.crt")

    def trusted_authorities(self) -> tuple[Certificate, ...]:
        """Return the certificates of the trusted authorities, the newest first. Raises ConfigError
        if ca.crt is damaged.
        """
        path = self.folder / "ca.crt"
        try:
            return parse_certificates(_read(path))
        except ValueError as error:
            raise ConfigError(f"{path}: {error}", "restore the file from a backup") from error

    def issuing_pem(self) -> bytes:
        """Return the certificate in ca.crt that ca.key belongs to, as PEM. Raises ConfigError if
        there is none.
        """
        from fleet_controller.pki.certificate_builder import key_matches

        key = self.authority_key()
        try:
            return next(pem for pem in split_pem(self.authorities_pem()) if key_matches(pem, key))
        except ValueError as error:
            raise ConfigError(
                f"{self.folder / 'ca.key'}: {error}", "restore the file from a backup"
            ) from error
        except StopIteration:
            raise ConfigError(
                f"{self.folder / 'ca.key'}: it is not the key of ca.crt",
                "restore ca.key and ca.crt from the same backup",
            ) from None

    def issuing_certificate(self) -> Certificate:
        """Return the certificate in ca.crt that ca.key belongs to."""
        return parse_certificates(self.issuing_pem())[0]

    def authority_key(self) -> bytes:
        """Return the content of ca.key. Raises ConfigError if other users may read the file."""
        path = self.folder / "ca.key"
        content = _read(path)
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                f"{path}: other users may read it, and anyone who has it commands the fleet",
                f"chmod 600 {path}",
            )
        return content

    def write_authorities(self, pems: Iterable[bytes]) -> None:
        """Replace ca.crt."""
        write_file(self.folder / "ca.crt", b"".join(pems), private=False)

    def write_authority_key(self, key_pem: bytes) -> None:
        """Replace ca.key."""
        write_file(self.folder / "ca.key", key_pem, private=True)

    def drop_unfinished_authority(self) -> None:
        """Remove a new authority that has no key. If a command is killed while it begins to replace
        the authority, such a certificate stands in ca.crt, above that of the issuing authority.
        """
        pems, issuing = split_pem(self.authorities_pem()), self.issuing_pem()
        if pems[0] != issuing:
            self.write_authorities(pems[pems.index(issuing) :])

    # Lists

    def ledger(self) -> IssuedCertificates:
        """Return every issued certificate, without those that expired long ago."""
        path = self.folder / "issued.json"
        try:
            return read_issued(_read(path)) if path.exists() else IssuedCertificates()
        except ValueError as error:
            raise ConfigError(
                f"{path}: it is not a list of issued certificates ({error})",
                "restore the file from a backup",
            ) from error

    def write_ledger(self, ledger: IssuedCertificates) -> None:
        """Replace issued.json."""
        write_file(self.folder / "issued.json", issued_json(ledger).encode(), private=False)

    def revoked(self) -> tuple[Revocation, ...]:
        """Return every revoked certificate."""
        return read_revocations(self.folder / "revoked.json")

    def write_revoked(self, revoked: Sequence[Revocation]) -> None:
        """Replace revoked.json."""
        write_file(self.folder / "revoked.json", revocations_json(revoked).encode(), private=False)

    # Certificates that the controller trusts for one host

    def pinned_path(self, host: str) -> Path:
        """Return the file with the certificates of one host's agent. Raises ConfigError for a host
        name that cannot be a file name.
        """
        check_name(host)
        return self.folder / "agents" / f"{host}.crt"

    def pinned(self, host: str) -> list[bytes]:
        """Return the certificates that the controller trusts for a host's agent, as PEM."""
        path = self.pinned_path(host)
        return split_pem(_read(path)) if path.exists() else []

    def write_pinned(self, host: str, pems: Iterable[bytes]) -> None:
        """Replace the certificates that the controller trusts for a host's agent."""
        path = self.pinned_path(host)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        write_file(path, b"".join(pems), private=False)

    # Pairs of key and certificate

    def pair_files(self, name: str) -> TlsFiles:
        """Return the TLS files of `controller` or `user`."""
        return TlsFiles(
            self.folder / "ca.crt",
            self.folder / f"{name}.crt",
            self.folder / f"{name}.key",
            self.folder / "revoked.json",
        )

    def replace_pair(self, name: str, issued: CertificateAndKey) -> None:
        """Replace the key and certificate of `controller` or `user`.

        A reader may find a new key with an old certificate. It then keeps its old pair and reads
        again. If the command is killed meanwhile, `finish_replacement` completes the change.
        """
        write_file(
            self.folder / f"{name}.next", issued.key_pem + issued.certificate_pem, private=True
        )
        self.finish_replacement()

    def has_unfinished_replacement(self) -> bool:
        """Return whether a killed command left a new key and certificate that are not in place."""
        return any(self.folder.glob("*.next"))

    def finish_replacement(self) -> None:
        """Put each key and certificate in place that a killed command left as *.next."""
        for pair in self.folder.glob("*.next"):
            key, begin, certificate = _read(pair).partition(_BEGIN)
            write_file(pair.with_suffix(".key"), key, private=True)
            write_file(pair.with_suffix(".crt"), begin + certificate, private=False)
            pair.unlink()


def lock_path(folder: Path) -> Path:
    """Return the lock file that a command holds while it creates or changes a trust folder."""
    return folder.parent / f".{folder.name}.lock"


def check_name(name: str) -> None:
    """Raise ConfigError for a name that is not allowed in a certificate or as a file name."""
    if not PARTY_NAME_PATTERN.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot be the name in a certificate",
            "use at most 63 letters, digits, `.`, `-` and `_`",
        )


def split_pem(text: bytes) -> list[bytes]:
    """Split a PEM text into its certificates. Each result is PEM again."""
    return [_BEGIN + part.partition(_END)[0] + _END + b"\n" for part in text.split(_BEGIN)[1:]]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", "`fleetctl init --fleet` creates it"
        ) from error
