"""Owns the trust folder: the fleet's authority, whom it has issued certificates to, and whose are
revoked. Speaks to no host.

    ca.crt          the authorities that are trusted, the issuing one first (two while the authority
    is being replaced) ca.key          the key of the issuing one controller.*, user.*
    certificate and key of the controller and of the user of this machine; *.next: a pair not yet in
    place agents/HOST.crt the certificates by which the controller knows a host's agent: those
    issued to it and not revoked issued.json, revoked.json

Everything is read anew for each call, so that any number of commands and threads may use one
folder.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fleet_controller.pki import trust_folder as files
from fleet_controller.pki.expiry import RENEW_BEFORE_S, ExpiringCertificate
from fleet_controller.pki.issued_certificates import (
    IssuedCertificate,
    IssuedCertificates,
    issued_json,
    read_issued,
)
from fleet_protos.errors import ConfigError, Conflict, NotFound
from fleet_transport.certificate import Certificate, parse_certificates
from fleet_transport.revocation_list import Revocation, read_revocations, revocations_json
from fleet_transport.tls_identity import (
    CONTROLLER_NAME,
    PARTY_NAME_PATTERN,
    Role,
    TlsFiles,
    agent_name,
)

if TYPE_CHECKING:
    from fleet_controller.pki.certificate_builder import CertificateAndKey

# of one host: its newest, and those that a deploy which did not come to its end may have left there
_PINS = 4
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


class Authority:
    """A trust folder that exists. Raises ConfigError, which names the file, for one that is damaged
    or that others may read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path) -> Authority:
        """Raises ConfigError when there is none, or when it is damaged."""
        authority = cls(folder)
        if not (folder / "ca.crt").exists():
            raise ConfigError(
                f"there is no authority in {folder}",
                "`fleetctl init` makes it; --trust DIR names another folder",
            )
        if any(folder.glob("*.next")):
            with authority._exclusive():
                authority._finish_replacement()
        authority.trusted_authorities()
        authority.ledger()
        authority.revoked()
        return authority

    # What there is

    def trusted_authorities(self) -> tuple[Certificate, ...]:
        """The authorities that are trusted now, the newest first."""
        return _certificates(self.folder / "ca.crt")

    def authorities_pem(self) -> bytes:
        """What a host or a user needs to know the others of the fleet by."""
        return _read(self.folder / "ca.crt")

    def ledger(self) -> IssuedCertificates:
        """Every certificate issued that has not expired long ago."""
        path = self.folder / "issued.json"
        try:
            return read_issued(_read(path)) if path.exists() else IssuedCertificates()
        except ValueError as error:
            raise ConfigError(
                f"{path}: it is not a list of issued certificates ({error})",
                "restore it from a backup",
            ) from error

    def revoked(self) -> tuple[Revocation, ...]:
        """Every certificate that is trusted no more."""
        return read_revocations(self.folder / "revoked.json")

    def revoked_text(self) -> str:
        """The list as a file for a host."""
        return revocations_json(self.revoked())

    def expiring(self, now_unix_s: float) -> tuple[ExpiringCertificate, ...]:
        """The newest certificate of each party with its end, the next to end first; a revoked one
        is not in use.
        """
        gone = {entry.fingerprint for entry in self.revoked()}
        parties = [
            ExpiringCertificate(entry.role, entry.name, entry.expires_unix_s)
            for entry in self.ledger().newest()
            if entry.fingerprint not in gone
        ]
        parties += [
            ExpiringCertificate("authority", "", known.not_after_unix_s)
            for known in self.trusted_authorities()[:1]
        ]
        return tuple(
            sorted(parties, key=lambda party: (party.expires_unix_s, party.role, party.name))
        )

    def controller_files(self) -> TlsFiles:
        """The controller's own: for its door, and for its lines where no host is named."""
        return self._files("controller")

    def user_files(self) -> TlsFiles:
        """Those of the user of this machine."""
        return self._files("user")

    def agent_files(self, host: str) -> TlsFiles:
        """The controller's for its line to one host: trusted is nothing but the certificates issued
        to that host and not revoked.

        Whoever holds another key, be it one of the fleet, cannot pass for it. Raises ConfigError
        when none was issued or all are revoked.
        """
        pins = self._pinned_path(host)
        if not pins.exists():
            known = self.ledger().issued_to(Role.AGENT, host)
            message = (
                f"the certificate of host {host} was revoked"
                if known
                else f"no certificate was ever issued to host {host}"
            )
            raise ConfigError(message, f"fleetctl deploy {host} gives it a new one")
        return TlsFiles(
            pins,
            self.folder / "controller.crt",
            self.folder / "controller.key",
            self.folder / "revoked.json",
        )

    def _files(self, name: str) -> TlsFiles:
        return TlsFiles(
            self.folder / "ca.crt",
            self.folder / f"{name}.crt",
            self.folder / f"{name}.key",
            self.folder / "revoked.json",
        )

    def _pinned_path(self, host: str) -> Path:
        _check_name(host)
        return self.folder / "agents" / f"{host}.crt"

    def renewal_reason(self, host: str, fingerprint: str, now_unix_s: float) -> str:
        """Why the certificate that a host has (SHA-256 of its DER in hex; empty = none) is to be
        replaced; empty when it is good.
        """
        if not fingerprint:
            return "it has none"
        entry = next(
            (
                entry
                for entry in self.ledger().issued_to(Role.AGENT, host)
                if entry.fingerprint == fingerprint
            ),
            None,
        )
        if entry is None:
            return "it is not one that this authority issued to the host"
        reasons = (
            (any(gone.fingerprint == fingerprint for gone in self.revoked()), "it is revoked"),
            (entry.renew, "a new one was asked for"),
            (entry.authority != self._issuing().fingerprint, "the authority is being replaced"),
            (entry.expires_unix_s - now_unix_s < RENEW_BEFORE_S, "it expires within 30 days"),
        )
        return next((reason for holds, reason in reasons if holds), "")

    def hosts_to_redeploy(self) -> tuple[str, ...]:
        """While the authority is being replaced: hosts that were not seen yet with a certificate of
        the new one.
        """
        issuing, gone = self._issuing().fingerprint, {entry.fingerprint for entry in self.revoked()}
        agents = [
            entry for entry in self.ledger().issued_to(Role.AGENT) if entry.fingerprint not in gone
        ]
        done = {entry.name for entry in agents if entry.authority == issuing and entry.installed}
        return tuple(sorted({entry.name for entry in agents} - done))

    @property
    def is_being_replaced(self) -> bool:
        """Two authorities are trusted."""
        return len(self.trusted_authorities()) > 1

    # What changes it

    def issue_agent(self, host: str, addresses: Iterable[str] = ()) -> CertificateAndKey:
        """A certificate for a host's agent. The key is in the result alone. Raises ConfigError for
        a name of no use.
        """
        pins = self._pinned_path(host)
        with self._exclusive():
            issued = self._issue(Role.AGENT, host, agent_name(host), tuple(addresses))
            earlier = (
                [pem for pem in _pems(_read(pins)) if not self._is_revoked(pem)]
                if pins.exists()
                else []
            )
            seen = {
                entry.fingerprint
                for entry in self.ledger().issued_to(Role.AGENT, host)
                if entry.installed
            }
            earlier.sort(
                key=lambda pem: parse_certificates(pem)[0].fingerprint not in seen
            )  # what the host has stays trusted
            pins.parent.mkdir(exist_ok=True, mode=0o700)
            files.write_file(
                pins, b"".join([issued.certificate_pem, *earlier][:_PINS]), private=False
            )
        return issued

    def mark_installed(self, host: str, fingerprint: str) -> None:
        """The host's agent answered with this certificate: the ones before are trusted no more for
        it. Raises NotFound.
        """
        with self._exclusive():
            entry = next(
                (
                    entry
                    for entry in self._issued_to(Role.AGENT, host)
                    if entry.fingerprint == fingerprint
                ),
                None,
            )
            if entry is None:
                raise NotFound(
                    f"the certificate {fingerprint[:12]} was not issued to host {host}",
                    f"fleetctl deploy {host}",
                )
            if not entry.installed:
                self._write_ledger(self.ledger().with_installed(fingerprint))
            pins = self._pinned_path(host)
            pinned = _pems(_read(pins)) if pins.exists() else []
            kept = [pem for pem in pinned if parse_certificates(pem)[0].fingerprint == fingerprint]
            if kept and kept != pinned:
                files.write_file(pins, kept[0], private=False)

    def issue_user(self, name: str) -> CertificateAndKey:
        """A certificate for a user on another machine. The key is in the result alone."""
        _check_name(name)
        with self._exclusive():
            return self._issue(Role.USER, name, f"{name}.user.benchfleet")

    def renew_controller(self) -> None:
        """A new key and certificate for the controller; a running one takes it at its next
        connection.

        Raises Conflict while the authority is being replaced: hosts that know only the one before
        would refuse it.
        """
        with self._exclusive():
            self._refuse_while_replacing()
            self._replace_pair(
                "controller", self._issue(Role.CONTROLLER, "controller", CONTROLLER_NAME)
            )

    def renew_user(self, name: str) -> None:
        """A new key and certificate for the user of this machine."""
        with self._exclusive():
            self._replace_pair("user", self._issue(Role.USER, name, f"{name}.user.benchfleet"))

    def request_renewal(self, host: str) -> None:
        """The next deploy of the host brings a new certificate. Raises NotFound."""
        with self._exclusive():
            self._issued_to(Role.AGENT, host)
            self._write_ledger(self.ledger().with_renewal_requested(Role.AGENT, host))

    def revoke(self, host: str, reason: str = "") -> int:
        """Trust no certificate of a host any more; how many are newly revoked. Raises NotFound for
        a host that has none.
        """
        with self._exclusive():
            known = self._issued_to(Role.AGENT, host)
            self._pinned_path(host).unlink(
                missing_ok=True
            )  # first: cut off after this, the host is trusted no more already
            return self._revoke(known, reason)

    def revoke_user(self, name: str, reason: str = "") -> int:
        """Trust no certificate of a user any more. Raises NotFound."""
        with self._exclusive():
            return self._revoke(self._issued_to(Role.USER, name), reason)

    def revoke_controller(self, reason: str = "") -> int:
        """Trust no certificate of the controller made so far, and give it a new one. Hosts learn of
        it when they are deployed.
        """
        with self._exclusive():
            self._refuse_while_replacing()
            before = self._issued_to(Role.CONTROLLER, "controller")
            self._replace_pair(
                "controller", self._issue(Role.CONTROLLER, "controller", CONTROLLER_NAME)
            )
            return self._revoke(before, reason)

    def begin_replacing(self) -> None:
        """A new authority beside the one in use: it issues from now on, both are trusted. Raises
        Conflict when that was begun before.
        """
        from fleet_controller.pki.certificate_builder import make_authority

        with self._exclusive():
            self._drop_unfinished_authority()
            if self.is_being_replaced:
                raise Conflict(
                    "the authority is being replaced already",
                    "`fleetctl trust show` tells which hosts wait to be deployed",
                )
            new = make_authority(_now())
            # In this order: cut off between the two, an authority is trusted that has no key, and
            # the next call drops it.
            files.write_file(
                self.folder / "ca.crt", new.certificate_pem + self.authorities_pem(), private=False
            )
            files.write_file(self.folder / "ca.key", new.key_pem, private=True)

    def finish_replacing(self, user: str) -> None:
        """Drop the authority before. Raises Conflict while hosts wait to be deployed, or when
        nothing was begun.
        """
        with self._exclusive():
            self._drop_unfinished_authority()
            if not self.is_being_replaced:
                raise Conflict(
                    "the authority is not being replaced",
                    "`fleetctl trust rotate --authority` begins it",
                )
            if waiting := self.hosts_to_redeploy():
                message = f"hosts with a certificate of the authority before: {', '.join(waiting)}"
                raise Conflict(
                    message,
                    f"fleetctl deploy {' '.join(waiting)}; or `fleetctl hosts revoke` for one that is gone",
                )
            self._replace_pair(
                "controller", self._issue(Role.CONTROLLER, "controller", CONTROLLER_NAME)
            )
            self._replace_pair("user", self._issue(Role.USER, user, f"{user}.user.benchfleet"))
            files.write_file(
                self.folder / "ca.crt", _pems(self.authorities_pem())[0], private=False
            )

    # Inside, with the lock held

    def _exclusive(self) -> AbstractContextManager[None]:
        return files.exclusive_lock(lock_path(self.folder))

    def _issuing_pem(self) -> bytes:
        """The certificate whose key is ca.key."""
        from fleet_controller.pki.certificate_builder import key_matches

        key = self._key()
        try:
            return next(pem for pem in _pems(self.authorities_pem()) if key_matches(pem, key))
        except ValueError as error:
            raise ConfigError(
                f"{self.folder / 'ca.key'}: {error}", "restore it from a backup"
            ) from error
        except StopIteration:
            raise ConfigError(
                f"{self.folder / 'ca.key'}: it is not the key of ca.crt",
                "restore both from one backup",
            ) from None

    def _issuing(self) -> Certificate:
        return parse_certificates(self._issuing_pem())[0]

    def _key(self) -> bytes:
        path = self.folder / "ca.key"
        content = _read(path)
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                f"{path}: others may read it, and whoever has it commands the fleet",
                f"chmod 600 {path}",
            )
        return content

    def _drop_unfinished_authority(self) -> None:
        """An authority that stands before the issuing one never got its key: a command was killed."""
        pems, issuing = _pems(self.authorities_pem()), self._issuing_pem()
        if pems[0] != issuing:
            files.write_file(
                self.folder / "ca.crt", b"".join(pems[pems.index(issuing) :]), private=False
            )

    def _issue(
        self, role: Role, name: str, dns_name: str, addresses: tuple[str, ...] = ()
    ) -> CertificateAndKey:
        from fleet_controller.pki.certificate_builder import (
            CertificateAndKey,
            Subject,
            make_certificate,
        )

        authority, now = self._issuing_pem(), _now()
        try:
            issued = make_certificate(
                CertificateAndKey(authority, self._key()),
                Subject(role, name, dns_name, addresses),
                now,
            )
        except ValueError as error:
            raise ConfigError(
                f"no certificate can be made for {role} {name}: {error}",
                "give it another name or address",
            ) from error
        certificate = parse_certificates(issued.certificate_pem)[0]
        signer = parse_certificates(authority)[0].fingerprint
        self._write_ledger(
            self.ledger().with_entry(
                IssuedCertificate(
                    certificate.fingerprint,
                    role,
                    name,
                    int(now.timestamp()),
                    certificate.not_after_unix_s,
                    signer,
                )
            )
        )
        return issued

    def _refuse_while_replacing(self) -> None:
        if self.is_being_replaced:
            hint = (
                "deploy the hosts that wait for it, then `fleetctl trust rotate --authority` again"
            )
            raise Conflict(
                "the authority is being replaced, and the controller's certificate is replaced at the end of that",
                hint,
            )

    def _replace_pair(self, name: str, issued: CertificateAndKey) -> None:
        """Replace a pair. Whoever reads it in between keeps the one before and looks again; cut
        off, `_mend` goes on.
        """
        files.write_file(
            self.folder / f"{name}.next", issued.key_pem + issued.certificate_pem, private=True
        )
        self._finish_replacement()

    def _finish_replacement(self) -> None:
        """Finish what a killed command began: pairs that were to be replaced."""
        for half in self.folder.glob("*.next"):
            key, certificate = _split(_read(half))
            files.write_file(half.with_suffix(".key"), key, private=True)
            files.write_file(half.with_suffix(".crt"), certificate, private=False)
            half.unlink()

    def _issued_to(self, role: Role, name: str) -> tuple[IssuedCertificate, ...]:
        found = self.ledger().issued_to(role, name)
        if not name or not found:
            names = ", ".join(sorted({entry.name for entry in self.ledger().issued_to(role)}))
            kind = "host" if role is Role.AGENT else role
            raise NotFound(
                f"no certificate was issued to {kind} {name}",
                f"known are: {names}" if names else "none was issued yet",
            )
        return found

    def _revoke(self, entries: Iterable[IssuedCertificate], reason: str) -> int:
        known, now = self.revoked(), int(_now().timestamp())
        have = {entry.fingerprint for entry in known}
        new = [
            Revocation(entry.fingerprint, entry.role, entry.name, now, reason)
            for entry in entries
            if entry.fingerprint not in have
        ]
        files.write_file(
            self.folder / "revoked.json", revocations_json((*known, *new)).encode(), private=False
        )
        return len(new)

    def _is_revoked(self, pem: bytes) -> bool:
        return parse_certificates(pem)[0].fingerprint in {
            entry.fingerprint for entry in self.revoked()
        }

    def _write_ledger(self, ledger: IssuedCertificates) -> None:
        files.write_file(self.folder / "issued.json", issued_json(ledger).encode(), private=False)


def lock_path(folder: Path) -> Path:
    """Held by whoever changes a trust folder, or makes it."""
    return folder.parent / f".{folder.name}.lock"


def _check_name(name: str) -> None:
    """Raises ConfigError for one that cannot stand in a certificate, or is no name of a file."""
    if not PARTY_NAME_PATTERN.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name for a certificate",
            "use letters, digits, `.`, `-` and `_`, at most 63",
        )


def _now() -> datetime:
    return datetime.now(UTC)


def _pems(text: bytes) -> list[bytes]:
    """Each certificate of a PEM text, as PEM."""
    return [_BEGIN + part.partition(_END)[0] + _END + b"\n" for part in text.split(_BEGIN)[1:]]


def _split(pair: bytes) -> tuple[bytes, bytes]:
    key, begin, certificate = pair.partition(_BEGIN)
    return key, begin + certificate


def _certificates(path: Path) -> tuple[Certificate, ...]:
    try:
        return parse_certificates(_read(path))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", "restore it from a backup") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", "`fleetctl init` makes it"
        ) from error
