"""Implements the TLS gateway in front of a gRPC server's Unix socket. The gateway decides which
certificates may connect, and says why a certificate is refused.

gRPC's own TLS does not do this. It does not report the reason of a refusal to the peer, nor, at its
lowest log level, to the log. It takes no revocation list, and it cannot end a connection after the
certificate was revoked (docs/decisions/0010).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from fleet_protos.errors import Conflict
from fleet_transport.certificate import Certificate
from fleet_transport.gateway_connection import ClientConnection, format_address
from fleet_transport.reset_limit import ResetLimit
from fleet_transport.revocation_list import RevocationList
from fleet_transport.sockets import parse_endpoint
from fleet_transport.tls_errors import certificate_refusal_reason
from fleet_transport.tls_identity import Role, TlsFiles
from fleet_transport.tls_reload import ReloadingTlsFiles

log = logging.getLogger(__name__)

_RECHECK_S = 2.0  # how soon the connections of a revoked certificate are closed
_LOG_INTERVAL_S = 60.0
_BACKLOG = 256
_MAX_CONNECTIONS = 4096
_MAX_HANDSHAKES = 512  # unfinished handshakes in all
_MAX_HANDSHAKES_PER_ADDRESS = 64


class TlsGateway:
    """Listens on `address` and accepts peers with a certificate for one of `roles`. It works while
    `serve` runs.
    """

    def __init__(
        self,
        address: str,
        backend: str,
        tls: TlsFiles,
        roles: frozenset[Role],
        on_certificate_change: Callable[[Certificate], None] = lambda _: None,
    ) -> None:
        """`backend` is the unix:PATH of the gRPC server. `on_certificate_change` is called with the
        certificate in use, now and after each change.

        Raises ConfigError if a file or the address is unusable. Raises Conflict if the address is
        in use.
        """
        self.backend_path = Path(backend.removeprefix("unix:"))
        self.roles = roles
        self.tls_files = ReloadingTlsFiles(tls, on_certificate_change)
        self.revocations = RevocationList(tls.revoked)
        self.connections: dict[ClientConnection, None] = {}  # the oldest first
        self._log_throttle = LogThrottle()
        self._reset_limit = ResetLimit()
        self._tasks = asyncio.TaskGroup()
        self._socket = _listen(address)
        self.address = format_address(self._socket.getsockname())

    async def serve(self) -> None:
        """Run until cancelled, then close every connection."""
        server = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(self), sock=self._socket
        )
        try:
            async with server, self._tasks:
                while True:
                    await asyncio.sleep(_RECHECK_S)
                    # load and report a new certificate even while nobody connects
                    self.tls_files.context()
                    self._close_revoked()
        finally:
            await self._close_all()

    def start_backend_connection(self, client: ClientConnection) -> None:
        """Start to connect an accepted peer to the server behind the gateway."""
        self._tasks.create_task(client.connect_backend())

    async def _close_all(self) -> None:
        # a transport closes one turn of the loop after abort(), its backend's one turn later
        while True:
            for connection in list(self.connections):
                connection.abort()
            await asyncio.sleep(0.01)
            if not self.connections:
                return

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Run `serve` within the context. Yield the address with its real port."""
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(self.serve())
            try:
                yield self.address
            finally:
                serving.cancel()

    def refusal_reason(self, certificate: Certificate) -> str:
        """Return why the certificate is refused now. Empty if it is accepted."""
        return certificate_refusal_reason(
            certificate,
            self.roles,
            self.revocations.find(certificate.fingerprint),
            time.time_ns() / 1e9,
        )

    def allows_resets(self, certificate: Certificate, resets: int) -> bool:
        """Return whether the holder of the certificate may have so many more streams reset now."""
        return self._reset_limit.allows(certificate.fingerprint, resets, time.monotonic())

    def log_refusal(self, peer: str, reason: str) -> None:
        """Log a refusal, at most once a minute for the same address and reason. The line says how
        many refusals were not logged.
        """
        suppressed = self._log_throttle.suppressed_before(
            f"{_address_of(peer)} {reason}", time.monotonic()
        )
        if suppressed is not None:
            log.warning(
                "refused %s: %s%s",
                peer,
                reason,
                f" ({suppressed} more since the last such line)" if suppressed else "",
            )

    def make_room(self, peer: str) -> bool:
        """Return whether a connection from this peer fits, after dropping a stranger for it.

        A stranger is a connection without a certificate so far. If there are too many, of the
        peer's address or in all, the oldest one is dropped, first of those that have sent nothing.
        """
        strangers = [each for each in self.connections if each.is_stranger]
        same = [each for each in strangers if _address_of(each.peer) == _address_of(peer)]
        if len(same) >= _MAX_HANDSHAKES_PER_ADDRESS:
            strangers = same
        elif len(strangers) < _MAX_HANDSHAKES and len(self.connections) < _MAX_CONNECTIONS:
            return True
        if not strangers:
            return False
        next((each for each in strangers if each.is_silent), strangers[0]).drop()
        return True

    def _close_revoked(self) -> None:
        for connection in list(self.connections):
            certificate = connection.certificate
            reason = self.refusal_reason(certificate) if certificate else ""
            if reason:
                self.log_refusal(connection.peer, reason)
                connection.abort()


class LogThrottle:
    """Suppresses repeated log lines. Without it, a peer that keeps trying could fill the disk."""

    def __init__(self) -> None:
        self._logged_at_s: dict[str, float] = {}
        self._suppressed = Counter[str]()

    @property
    def count(self) -> int:
        """The number of different keys that are remembered."""
        return len(self._logged_at_s)

    def suppressed_before(self, key: str, now_s: float) -> int | None:
        """Return how often the line `key` was suppressed since it was last logged. Return None if
        it must not be logged now.
        """
        if now_s - self._logged_at_s.get(key, -_LOG_INTERVAL_S) < _LOG_INTERVAL_S:
            self._suppressed[key] += 1
            return None
        if len(self._logged_at_s) >= _MAX_CONNECTIONS:
            self._logged_at_s.clear()
            self._suppressed.clear()
        self._logged_at_s[key] = now_s
        return self._suppressed.pop(key, 0)


def _listen(address: str) -> socket.socket:
    host, port = parse_endpoint(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise Conflict(
            f"cannot listen on {address}: {error.strerror}",
            "choose another address or port, or stop the process that uses it",
        ) from error
    listener.setblocking(False)
    return listener


def _address_of(peer: str) -> str:
    return peer.rpartition(":")[0]
