"""Describes failed TLS connections in words, for the server's log and for the client's error."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

from fleet_transport.certificate import Certificate
from fleet_transport.revocation_list import Revocation
from fleet_transport.tls_identity import Role

# what a gateway sends before it closes a connection whose certificate is valid but refused
REFUSAL_PREFIX = b"benchfleet refuses: "
# the fatal alert access_denied (RFC 8446, 6.2), which a gateway sends when it has no room
NO_ROOM_ALERT = bytes((21, 3, 3, 0, 2, 2, 49))
_NOT_ISSUED = "not issued by this fleet's authority"

# OpenSSL's verify codes (x509_vfy.h)
_VERIFY = {
    2: _NOT_ISSUED,
    9: "not yet valid",
    10: "expired",
    18: _NOT_ISSUED,
    19: _NOT_ISSUED,
    20: _NOT_ISSUED,
    21: _NOT_ISSUED,
    7: "forged: its signature is wrong",
    26: "not meant for this purpose",
    62: "that of another party",
}
_NOT_TLS = frozenset(
    (
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "HTTPS_PROXY_REQUEST",
        "UNEXPECTED_MESSAGE",
        "PACKET_LENGTH_TOO_LONG",
        "RECORD_LAYER_FAILURE",
    )
)
_OLD_TLS = frozenset(
    ("UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW", "NO_SHARED_CIPHER", "NO_PROTOCOLS_AVAILABLE")
)
# the alert of the other side -> what it holds against our certificate; the beginning of an alert's
# name differs between versions of OpenSSL
_ALERTS = {
    "CERTIFICATE_EXPIRED": "expired",
    "UNKNOWN_CA": "not issued by a trusted authority",
    "CERTIFICATE_UNKNOWN": "not acceptable",
    "BAD_CERTIFICATE": "not acceptable",
    "UNSUPPORTED_CERTIFICATE": "not meant for this purpose",
    "CERTIFICATE_REVOKED": "revoked",
}


def describe_server_handshake_error(error: ssl.SSLError) -> str:
    """Return why the handshake with a peer failed, for the server's log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        detail = _VERIFY.get(error.verify_code, error.verify_message)
        return f"the peer's certificate is {detail}"
    reason = error.reason or ""
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "the peer presents no certificate"
    if reason in _NOT_TLS:
        return "the peer does not speak TLS"
    if reason in _OLD_TLS:
        return "the peer only speaks a TLS version older than 1.3"
    alert = _alert_text(reason)
    if alert:
        return f"the peer rejects this server's certificate: {alert}"
    return _other_failure(error)


def is_unknown_issuer(error: ssl.SSLError) -> bool:
    """Return whether the other side's certificate is not one that we trust."""
    return (
        isinstance(error, ssl.SSLCertVerificationError)
        and _VERIFY.get(error.verify_code) == _NOT_ISSUED
    )


def describe_rejected_server(error: ssl.SSLError, name: str) -> str:
    """Return what the client rejects about the server. Empty if the error has another cause."""
    if isinstance(error, ssl.SSLCertVerificationError):
        detail = _VERIFY.get(error.verify_code, error.verify_message)
        return f"the server's certificate is {detail}" + (
            f" (expected {name})" if error.verify_code == 62 else ""
        )
    if (error.reason or "") in _NOT_TLS:
        return "the server does not speak TLS"
    return ""


def describe_rejected_client(error: ssl.SSLError) -> str:
    """Return why the server rejects the client's certificate, from the TLS alert of the server."""
    reason = error.reason or ""
    if reason.endswith("CERTIFICATE_REQUIRED"):
        return "the server requires a certificate and got none"
    if reason.endswith("ALERT_ACCESS_DENIED"):
        return (
            "the server has no room: too many connections without a certificate are open; its log"
            " names their addresses"
        )
    alert = _alert_text(reason)
    if alert:
        return f"the server rejects our certificate: {alert}"
    if isinstance(error, ssl.SSLEOFError):
        return "the server closed the connection during the handshake"
    return _other_failure(error)


def _other_failure(error: ssl.SSLError) -> str:
    detail = (error.reason or "").lower().replace("_", " ") or error
    return f"the TLS handshake failed ({detail})"


def _alert_text(reason: str) -> str:
    return next((text for name, text in _ALERTS.items() if reason.endswith(f"ALERT_{name}")), "")


def certificate_refusal_reason(
    certificate: Certificate, wanted: frozenset[Role], revoked: Revocation | None, now_unix_s: float
) -> str:
    """Return why a certificate that this fleet's authority issued is refused. Empty if it is
    accepted.
    """
    if certificate.role is None:
        return "the certificate names no role of a fleet"
    subject = f"the certificate of {certificate.owner}"
    if revoked is not None:
        why = f": {revoked.reason}" if revoked.reason else ""
        return f"{subject} was revoked on {format_day(revoked.revoked_unix_s)}{why}"
    if certificate.not_after_unix_s < now_unix_s:
        return f"{subject} expired on {format_day(certificate.not_after_unix_s)}"
    if certificate.not_before_unix_s > now_unix_s:
        begin = format_minute(certificate.not_before_unix_s)
        return f"{subject} is not valid before {begin}; here it is {format_minute(now_unix_s)}"
    if certificate.role not in wanted:
        roles = " and ".join(
            f"the {role}" if role is Role.CONTROLLER else f"{role}s" for role in sorted(wanted)
        )
        return f"the certificate is that of {certificate.owner}; only {roles} may connect"
    return ""


def format_day(unix_s: float) -> str:
    """Return the day in UTC, written like `2026-10-01`."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d}"


def format_minute(unix_s: float) -> str:
    """Return the day and the minute in UTC, written like `2026-10-01 12:30 UTC`."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"
