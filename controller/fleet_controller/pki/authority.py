"""Issues, renews and revokes the certificates of a fleet.

The files of a trust folder:

    ca.crt              the trusted authorities; two while the authority is being replaced
    ca.key              the key of the issuing authority, the first in ca.crt
    controller.*        certificate and key of the controller
    user.*              certificate and key of the user of this machine
    *.next              a key and certificate that are not in place yet
    agents/HOST.crt     the certificates that the controller accepts from the host's agent
    issued.json         all issued certificates
    revoked.json        all revoked certificates

Every call reads the files again, so any number of commands and threads may use one folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fleet_controller.pki.authority_files import AuthorityFiles, check_name, split_pem
from fleet_controller.pki.expiry import RENEW_BEFORE_S, ExpiringCertificate
from fleet_controller.pki.issued_certificates import IssuedCertificate, IssuedCertificates
from fleet_protos.errors import ConfigError, Conflict, NotFound
from fleet_transport.certificate import Certificate, parse_certificates
from fleet_transport.revocation_list import Revocation, revocations_json
from fleet_transport.tls_identity import CONTROLLER_NAME, Role, TlsFiles, agent_name

if TYPE_CHECKING:
    from fleet_controller.pki.certificate_builder import CertificateAndKey

# Certificates trusted for one host: the newest, and those that a deploy that did not finish may
# have left on the host.
_PINS = 4


class Authority:
    """The certificate authority of an existing trust folder. All calls raise ConfigError, which
    names the file, if a file is damaged or readable by other users.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = AuthorityFiles(folder)

    @classmethod
    def open(cls, folder: Path) -> Authority:
        """Open a trust folder and check its files. Raises ConfigError if the folder is missing or
        damaged.
        """
        authority = cls(folder)
        if not (folder / "ca.crt").exists():
            raise ConfigError(
                f"there is no certificate authority in {folder}",
                "`fleetctl init --fleet` creates one; --trust DIR names another folder",
            )
        if authority._files.has_unfinished_replacement():
            with authority._files.lock():
                authority._files.finish_replacement()
        authority.trusted_authorities()
        authority.ledger()
        authority.revoked()
        return authority

    # Queries

    def trusted_authorities(self) -> tuple[Certificate, ...]:
        """Return the certificates of the trusted authorities, the newest first."""
        return self._files.trusted_authorities()

    def authorities_pem(self) -> bytes:
        """Return the certificates of the trusted authorities as PEM, for a host or a user."""
        return self._files.authorities_pem()

    def ledger(self) -> IssuedCertificates:
        """Return every issued certificate, without those that expired long ago."""
        return self._files.ledger()

    def revoked(self) -> tuple[Revocation, ...]:
        """Return every revoked certificate."""
        return self._files.revoked()

    def revoked_text(self) -> str:
        """Return the text of the file with all revocations, which is sent to hosts."""
        return revocations_json(self.revoked())

    def expiring(self, now_unix_s: float) -> tuple[ExpiringCertificate, ...]:
        """Return the newest certificate of each party and of the authority, sorted by expiry time.
        Revoked certificates are left out.
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
        """Return the controller's TLS files that are not specific to one host."""
        return self._files.pair_files("controller")

    def user_files(self) -> TlsFiles:
        """Return the TLS files of the user of this machine."""
        return self._files.pair_files("user")

    def agent_files(self, host: str) -> TlsFiles:
        """Return the controller's TLS files for its connection to one host. These files trust only
        certificates that were issued to this host and not revoked.

        Raises ConfigError if no certificate was issued to the host or all are revoked.
        """
        pins = self._files.pinned_path(host)
        if not pins.exists():
            known = self.ledger().issued_to(Role.AGENT, host)
            message = (
                f"the certificate of host {host} was revoked"
                if known
                else f"no certificate was ever issued to host {host}"
            )
            raise ConfigError(message, f"`fleetctl deploy {host}` issues a new one")
        return TlsFiles(
            pins,
            self.folder / "controller.crt",
            self.folder / "controller.key",
            self.folder / "revoked.json",
        )

    def renewal_reason(self, host: str, fingerprint: str, now_unix_s: float) -> str:
        """Return why the certificate on a host must be replaced, or an empty text.

        `fingerprint` is the SHA-256 of the certificate's DER in hex. It is empty if the host has no
        certificate.
        """
        if not fingerprint:
            return "it has none"
        entry = self._entry(host, fingerprint)
        if entry is None:
            return "this authority did not issue the certificate to the host"
        issuing = self._files.issuing_certificate().fingerprint
        reasons = (
            (any(gone.fingerprint == fingerprint for gone in self.revoked()), "it is revoked"),
            (entry.renew, "a new certificate was requested"),
            (entry.authority != issuing, "the authority is being replaced"),
            (
                entry.expires_unix_s - now_unix_s < RENEW_BEFORE_S,
                "the certificate expires within 30 days",
            ),
        )
        return next((reason for holds, reason in reasons if holds), "")

    def hosts_to_redeploy(self) -> tuple[str, ...]:
        """Return the hosts that are not yet known to use a certificate of the issuing authority."""
        issuing = self._files.issuing_certificate().fingerprint
        gone = {entry.fingerprint for entry in self.revoked()}
        agents = [
            entry for entry in self.ledger().issued_to(Role.AGENT) if entry.fingerprint not in gone
        ]
        done = {entry.name for entry in agents if entry.authority == issuing and entry.installed}
        return tuple(sorted({entry.name for entry in agents} - done))

    @property
    def is_being_replaced(self) -> bool:
        """Return whether the authority is being replaced, so that an old and a new authority are
        trusted.
        """
        return len(self.trusted_authorities()) > 1

    # Changes

    def issue_agent(self, host: str, addresses: Iterable[str] = ()) -> CertificateAndKey:
        """Issue a certificate for a host's agent. The key is not stored here. Raises ConfigError
        for a name that is not allowed in a certificate.
        """
        check_name(host)
        with self._files.lock():
            issued = self._issue(Role.AGENT, host, agent_name(host), tuple(addresses))
            earlier = [pem for pem in self._files.pinned(host) if not self._is_revoked(pem)]
            installed = {
                entry.fingerprint
                for entry in self.ledger().issued_to(Role.AGENT, host)
                if entry.installed
            }
            # The certificate that is installed on the host must be among those that are kept.
            earlier.sort(key=lambda pem: parse_certificates(pem)[0].fingerprint not in installed)
            self._files.write_pinned(host, [issued.certificate_pem, *earlier][:_PINS])
        return issued

    def mark_installed(self, host: str, fingerprint: str) -> None:
        """Record that the host's agent uses this certificate. The host's earlier certificates are
        no longer trusted. Raises NotFound if the certificate was not issued to this host.
        """
        with self._files.lock():
            self._require_issued(Role.AGENT, host)
            entry = self._entry(host, fingerprint)
            if entry is None:
                short_fingerprint = fingerprint[:12]
                raise NotFound(
                    f"the certificate {short_fingerprint} was not issued to host {host}",
                    f"`fleetctl deploy {host}` issues a new one",
                )
            if not entry.installed:
                self._files.write_ledger(self.ledger().with_installed(fingerprint))
            pinned = self._files.pinned(host)
            kept = [pem for pem in pinned if parse_certificates(pem)[0].fingerprint == fingerprint]
            if kept and kept != pinned:
                self._files.write_pinned(host, kept[:1])

    def issue_user(self, name: str) -> CertificateAndKey:
        """Issue a certificate for a user on another machine. The key is not stored here."""
        check_name(name)
        with self._files.lock():
            return self._issue(Role.USER, name, f"{name}.user.benchfleet")

    def renew_controller(self) -> None:
        """Replace the controller's key and certificate. A running controller uses the new files
        from its next connection on.

        Raises Conflict while the authority is being replaced, because hosts that know only the old
        authority would refuse the new certificate.
        """
        with self._files.lock():
            self._refuse_while_replacing()
            self._replace_controller()

    def renew_user(self, name: str) -> None:
        """Replace the key and certificate of the user of this machine."""
        with self._files.lock():
            self._replace_user(name)

    def request_renewal(self, host: str) -> None:
        """Make the next deploy of the host bring a new certificate. Raises NotFound."""
        with self._files.lock():
            self._require_issued(Role.AGENT, host)
            self._files.write_ledger(self.ledger().with_renewal_requested(Role.AGENT, host))

    def revoke(self, host: str, reason: str = "") -> int:
        """Revoke all certificates of a host. Return how many were not revoked before. Raises
        NotFound if no certificate was issued to the host.
        """
        with self._files.lock():
            known = self._require_issued(Role.AGENT, host)
            # Remove the pins first: if the command is killed after this, the host is already
            # untrusted.
            self._files.pinned_path(host).unlink(missing_ok=True)
            return self._revoke(known, reason)

    def revoke_user(self, name: str, reason: str = "") -> int:
        """Revoke all certificates of a user. Return how many were not revoked before. Raises
        NotFound if no certificate was issued to the user.
        """
        with self._files.lock():
            return self._revoke(self._require_issued(Role.USER, name), reason)

    def revoke_controller(self, reason: str = "") -> int:
        """Revoke all certificates of the controller and issue a new one. Return how many were not
        revoked before. A host learns of the revocation at its next deploy.
        """
        with self._files.lock():
            self._refuse_while_replacing()
            before = self._require_issued(Role.CONTROLLER, "controller")
            self._replace_controller()
            return self._revoke(before, reason)

    def begin_replacing(self) -> None:
        """Create a new authority, which issues all certificates from now on. The old authority
        stays trusted. Raises Conflict if a replacement has begun already.
        """
        from fleet_controller.pki.certificate_builder import make_authority

        with self._files.lock():
            self._files.drop_unfinished_authority()
            if self.is_being_replaced:
                raise Conflict(
                    "the authority is being replaced already",
                    "`fleetctl trust show` lists the hosts that still have to be deployed",
                )
            new = make_authority(_now())
            # In this order: if the command is killed between the two, an authority without a key is
            # trusted, and the next call drops it.
            self._files.write_authorities([new.certificate_pem, self.authorities_pem()])
            self._files.write_authority_key(new.key_pem)

    def finish_replacing(self, user: str) -> None:
        """Drop the old authority, and renew the certificates of the controller and of `user`.
        Raises Conflict if hosts still have to be deployed, or if no replacement has begun.
        """
        with self._files.lock():
            self._files.drop_unfinished_authority()
            if not self.is_being_replaced:
                raise Conflict(
                    "the authority is not being replaced",
                    "`fleetctl trust rotate --authority` begins a replacement",
                )
            if waiting := self.hosts_to_redeploy():
                listed, hosts = ", ".join(waiting), " ".join(waiting)
                raise Conflict(
                    f"these hosts still have a certificate of the old authority: {listed}",
                    f"run `fleetctl deploy {hosts}`, "
                    "or `fleetctl hosts revoke HOST` for a host that is gone",
                )
            self._replace_controller()
            self._replace_user(user)
            self._files.write_authorities(split_pem(self.authorities_pem())[:1])

    # Steps of changes, with the lock held

    def _issue(
        self, role: Role, name: str, dns_name: str, addresses: tuple[str, ...] = ()
    ) -> CertificateAndKey:
        from fleet_controller.pki.certificate_builder import (
            CertificateAndKey,
            Subject,
            make_certificate,
        )

        authority, now = self._files.issuing_pem(), _now()
        try:
            issued = make_certificate(
                CertificateAndKey(authority, self._files.authority_key()),
                Subject(role, name, dns_name, addresses),
                now,
            )
        except ValueError as error:
            raise ConfigError(
                f"cannot issue a certificate for {role} {name}: {error}",
                "use another name or address",
            ) from error
        certificate = parse_certificates(issued.certificate_pem)[0]
        entry = IssuedCertificate(
            fingerprint=certificate.fingerprint,
            role=role,
            name=name,
            issued_unix_s=int(now.timestamp()),
            expires_unix_s=certificate.not_after_unix_s,
            authority=parse_certificates(authority)[0].fingerprint,
        )
        self._files.write_ledger(self.ledger().with_entry(entry))
        return issued

    def _replace_controller(self) -> None:
        issued = self._issue(Role.CONTROLLER, "controller", CONTROLLER_NAME)
        self._files.replace_pair("controller", issued)

    def _replace_user(self, name: str) -> None:
        issued = self._issue(Role.USER, name, f"{name}.user.benchfleet")
        self._files.replace_pair("user", issued)

    def _refuse_while_replacing(self) -> None:
        if self.is_being_replaced:
            raise Conflict(
                "the authority is being replaced; "
                "the controller's certificate is renewed when the replacement ends",
                "deploy the hosts that still have an old certificate, "
                "then run `fleetctl trust rotate --authority` again",
            )

    def _entry(self, host: str, fingerprint: str) -> IssuedCertificate | None:
        issued = self.ledger().issued_to(Role.AGENT, host)
        return next((entry for entry in issued if entry.fingerprint == fingerprint), None)

    def _require_issued(self, role: Role, name: str) -> tuple[IssuedCertificate, ...]:
        """Return the certificates issued to a party. Raises NotFound if there is none."""
        found = self.ledger().issued_to(role, name)
        if not name or not found:
            names = ", ".join(sorted({entry.name for entry in self.ledger().issued_to(role)}))
            kind = "host" if role is Role.AGENT else role
            raise NotFound(
                f"no certificate was issued to {kind} {name}",
                f"certificates were issued to: {names}" if names else "none was issued yet",
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
        self._files.write_revoked((*known, *new))
        return len(new)

    def _is_revoked(self, pem: bytes) -> bool:
        fingerprint = parse_certificates(pem)[0].fingerprint
        return any(entry.fingerprint == fingerprint for entry in self.revoked())


def _now() -> datetime:
    return datetime.now(UTC)
