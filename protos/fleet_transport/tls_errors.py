"""Owns the words for a TLS connection that did not come about, for the log of the server and the
error of the client. Pure text.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

from fleet_transport.certificate import Certificate
from fleet_transport.revocation_list import Revocation
from fleet_transport.tls_identity import Role

# what a door says before it hangs up on a certificate that it knows and does not want
REFUSAL_PREFIX = b"benchfleet refuses: "
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
# by what the other side says of our certificate; the names differ between versions of OpenSSL
_ALERTS = {
    "CERTIFICATE_EXPIRED": "expired",
    "UNKNOWN_CA": "not issued by an authority that it trusts",
    "CERTIFICATE_UNKNOWN": "not acceptable",
    "BAD_CERTIFICATE": "not acceptable",
    "UNSUPPORTED_CERTIFICATE": "not meant for this purpose",
    "CERTIFICATE_REVOKED": "revoked",
}


def describe_server_handshake_error(error: ssl.SSLError) -> str:
    """The server's log: why the handshake with a peer failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is {_VERIFY.get(error.verify_code, error.verify_message)}"
    reason = error.reason or ""
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no certificate"
    if reason in _NOT_TLS:
        return "it does not speak TLS"
    if reason in _OLD_TLS:
        return "it speaks only a TLS older than 1.3"
    alert = _alert_text(reason)
    if alert:
        return f"it does not accept the certificate here: {alert}"
    return f"the TLS handshake failed ({reason.lower().replace('_', ' ') or error})"


def describe_rejected_server(error: ssl.SSLError, name: str) -> str:
    """The client's error: what it has against the server it met; empty when that is not the
    trouble.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        detail = _VERIFY.get(error.verify_code, error.verify_message)
        return f"its certificate is {detail}" + (
            f" (expected is {name})" if error.verify_code == 62 else ""
        )
    if (error.reason or "") in _NOT_TLS:
        return "it does not speak TLS"
    return ""


def describe_rejected_client(error: ssl.SSLError) -> str:
    """The client's error: what the server has against the client's certificate, as its alert says."""
    reason = error.reason or ""
    if reason.endswith("CERTIFICATE_REQUIRED"):
        return "it wants a certificate and got none"
    alert = _alert_text(reason)
    if alert:
        return f"it refused our certificate: {alert}"
    if isinstance(error, ssl.SSLEOFError):
        return "it hung up in the middle of the handshake"
    return f"the TLS handshake failed ({reason.lower().replace('_', ' ') or error})"


def _alert_text(reason: str) -> str:
    return next((text for name, text in _ALERTS.items() if reason.endswith(f"ALERT_{name}")), "")


def certificate_refusal_reason(
    certificate: Certificate, wanted: frozenset[Role], revoked: Revocation | None, now_unix_s: float
) -> str:
    """Why a certificate of this fleet's authority is refused; empty when it is welcome."""
    if certificate.role is None:
        return "its certificate names no role of a fleet"
    if revoked is not None:
        why = f": {revoked.reason}" if revoked.reason else ""
        return f"the certificate of {certificate.owner} was revoked on {format_day(revoked.revoked_unix_s)}{why}"
    if certificate.not_after_unix_s < now_unix_s:
        return f"the certificate of {certificate.owner} expired on {format_day(certificate.not_after_unix_s)}"
    if certificate.not_before_unix_s > now_unix_s:
        message = f"the certificate of {certificate.owner} is valid only from {format_minute(certificate.not_before_unix_s)} on"
        return f"{message}; here it is {format_minute(now_unix_s)}"
    if certificate.role not in wanted:
        roles = " and ".join(
            f"the {role}" if role is Role.CONTROLLER else f"{role}s" for role in sorted(wanted)
        )
        return f"its certificate is that of {certificate.owner}; served are only {roles}"
    return ""


def format_day(unix_s: float) -> str:
    """`2026-10-01`, in UTC."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d}"


def format_minute(unix_s: float) -> str:
    """`2026-10-01 12:30 UTC`."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%d %H:%M} UTC"
