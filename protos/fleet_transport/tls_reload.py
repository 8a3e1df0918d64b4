"""Reads a server's TLS files, and reads them again whenever one of them changes."""

from __future__ import annotations

import logging
import math
import ssl
import time
from collections.abc import Callable

from fleet_protos.errors import ConfigError
from fleet_transport.certificate import Certificate, parse_certificates
from fleet_transport.file_stamp import FileStamp, file_stamp
from fleet_transport.tls_client import load_tls_files
from fleet_transport.tls_identity import TlsFiles

log = logging.getLogger(__name__)

# the gateway checks the validity period itself, so that its message can name certificate and day
_X509_V_FLAG_NO_CHECK_TIME = 0x200000


class ReloadingTlsFiles:
    """Holds a server's TLS files, and reads them again when one of them changes. If the new files
    do not fit together, the last good files stay in force.
    """

    def __init__(
        self, tls: TlsFiles, on_change: Callable[[Certificate], None] = lambda _: None
    ) -> None:
        """`on_change` is called with the certificate in use, now and after each change. Raises
        ConfigError, which names the unusable file.
        """
        self._tls = tls
        self._on_change = on_change
        self._good_until_s = math.inf  # when the next authority expires, in Unix seconds
        self._stamp = self._read_stamps()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for the next connection."""
        stamp = self._read_stamps()
        if stamp != self._stamp or _now_s() > self._good_until_s:
            self._stamp = stamp
            try:
                self._context = self._load()
                log.info("loaded the new certificate from %s", self._tls.certificate)
            except (ConfigError, OSError) as error:
                # two files cannot be replaced at once: the next change triggers another attempt
                self._good_until_s = math.inf
                log.warning(
                    "%s; the previous certificate stays in use", getattr(error, "message", error)
                )
        return self._context

    def _load(self) -> ssl.SSLContext:
        now_s = _now_s()
        context = server_context(self._tls, now_s)
        ends = (
            known.not_after_unix_s
            for known in parse_certificates(self._tls.authorities.read_bytes())
        )
        self._good_until_s = min((end for end in ends if end >= now_s), default=math.inf)
        self._on_change(parse_certificates(self._tls.certificate.read_bytes())[0])
        return context

    def _read_stamps(self) -> tuple[FileStamp | None, ...]:
        return tuple(
            file_stamp(path)
            for path in (self._tls.authorities, self._tls.certificate, self._tls.key)
        )


def server_context(tls: TlsFiles, now_unix_s: float) -> ssl.SSLContext:
    """Return a TLS context that requires TLS 1.3 and a certificate of the fleet. Raises
    ConfigError, which names the unusable file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= _X509_V_FLAG_NO_CHECK_TIME
    context.num_tickets = 0  # a resumed session would skip the certificate check
    context.set_alpn_protocols(["h2"])
    load_tls_files(context, tls, now_unix_s)
    return context


def _now_s() -> float:
    return time.time_ns() / 1e9
