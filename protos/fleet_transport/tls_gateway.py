"""Owns the TLS door in front of a gRPC server's Unix socket: who may come in, why another may not.
Reads nothing of what passes.

gRPC's own TLS tells neither the peer nor, above its lowest log level, the reason of a refusal,
takes no list of revoked certificates and cannot end a connection whose certificate was revoked
(docs/decisions/0010).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from fleet_protos.errors import Conflict
from fleet_transport.caller import named_socket
from fleet_transport.certificate import Certificate, parse_certificate
from fleet_transport.revocation_list import RevocationList
from fleet_transport.sockets import parse_endpoint
from fleet_transport.tls_errors import (
    REFUSAL_PREFIX,
    certificate_refusal_reason,
    describe_server_handshake_error,
)
from fleet_transport.tls_identity import Role, TlsFiles
from fleet_transport.tls_reload import ReloadingTlsFiles

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
_RECHECK_S = 2.0  # how soon a revoked certificate loses the connections that it has
_LOG_INTERVAL_S = 60.0
_BACKLOG = 256
_MAX_CONNECTIONS = 4096
_MOST_STRANGERS, _MOST_STRANGERS_OF_ONE = (
    512,
    64,
)  # connections whose handshake is not over: in all, from one address
_CHUNK_BYTES = 64 << 10


class TlsGateway:
    """Listens on `address` and lets those in who hold a certificate of one of `roles`. `serve` must
    be running.
    """

    def __init__(
        self,
        address: str,
        backend: str,
        tls: TlsFiles,
        roles: frozenset[Role],
        on_certificate_change: Callable[[Certificate], None] = lambda _: None,
    ) -> None:
        """`inner` is the unix:PATH of the gRPC server; `taken` as for `Keys`.

        Raises ConfigError for files or an address of no use, Conflict for one in use.
        """
        self.backend_path = Path(backend.removeprefix("unix:"))
        self.roles = roles
        self.tls_files = ReloadingTlsFiles(tls, on_certificate_change)
        self.revocations = RevocationList(tls.revoked)
        self.connections: set[ClientConnection] = set()
        self._log_throttle = LogThrottle()
        self._tasks = asyncio.TaskGroup()
        self._socket = _listen(address)
        self.address = _format_address(self._socket.getsockname())

    async def serve(self) -> None:
        """Until cancelled; then every connection is closed."""
        server = await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(self), sock=self._socket
        )
        try:
            async with server, self._tasks:
                while True:
                    await asyncio.sleep(_RECHECK_S)
                    # a new certificate is taken, and told, also while nobody comes
                    self.tls_files.context()
                    self._close_revoked()
        finally:
            await self._close_all()

    def start_backend_connection(self, client: ClientConnection) -> None:
        """Make the line from a peer that is welcome to the server inside."""
        self._tasks.create_task(client.connect_backend())

    async def _close_all(self) -> None:
        # a transport closes a turn of the loop after it is told to, and the one behind it a turn
        # later
        while True:
            for line in list(self.connections):
                line.abort()
            await asyncio.sleep(0.01)
            if not self.connections:
                return

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """`serve` while inside; yields the address with its real port."""
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(self.serve())
            try:
                yield self.address
            finally:
                serving.cancel()

    def refusal_reason(self, certificate: Certificate) -> str:
        """Why it is refused now; empty when it is welcome."""
        return certificate_refusal_reason(
            certificate,
            self.roles,
            self.revocations.find(certificate.fingerprint),
            time.time_ns() / 1e9,
        )

    def log_refusal(self, peer: str, reason: str) -> None:
        """One line of the log; the same peer and reason again only once a minute, with the count."""
        suppressed = self._log_throttle.suppressed_before(
            f"{_address_of(peer)} {reason}", time.monotonic()
        )
        if suppressed is not None:
            log.warning(
                "refused %s: %s%s",
                peer,
                reason,
                f" ({suppressed} more like it before)" if suppressed else "",
            )

    def has_capacity(self, peer: str) -> bool:
        """False while too many are connected, or have not shown yet who they are: in all, or from
        where this peer comes.
        """
        strangers = [
            _address_of(line.peer) for line in self.connections if line.certificate is None
        ]
        few = (
            len(strangers) < _MOST_STRANGERS
            and strangers.count(_address_of(peer)) < _MOST_STRANGERS_OF_ONE
        )
        return few and len(self.connections) < _MAX_CONNECTIONS

    def _close_revoked(self) -> None:
        for line in list(self.connections):
            reason = self.refusal_reason(line.certificate) if line.certificate else ""
            if reason:
                self.log_refusal(line.peer, reason)
                line.abort()


class LogThrottle:
    """What was told of late, so that a peer that tries for ever does not fill the disk."""

    def __init__(self) -> None:
        self._logged_at_s: dict[str, float] = {}
        self._suppressed = Counter[str]()

    @property
    def count(self) -> int:
        """How many different ones are remembered."""
        return len(self._logged_at_s)

    def suppressed_before(self, key: str, now_s: float) -> int | None:
        """How often it was kept quiet since it was last told; None: do not tell it now."""
        if now_s - self._logged_at_s.get(key, -_LOG_INTERVAL_S) < _LOG_INTERVAL_S:
            self._suppressed[key] += 1
            return None
        if len(self._logged_at_s) >= _MAX_CONNECTIONS:
            self._logged_at_s.clear()
            self._suppressed.clear()
        self._logged_at_s[key] = now_s
        return self._suppressed.pop(key, 0)


class ClientConnection(asyncio.Protocol):
    """One connection from the network: its TLS, and the bytes to and from the server inside."""

    def __init__(self, gateway: TlsGateway) -> None:
        self.peer = ""
        self.certificate: Certificate | None = None
        self._gateway = gateway
        self._backend: BackendConnection | None = None
        self._pending: list[bytes] = []  # for the server inside, until the line to it stands
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A stranger has come."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.peer = _format_address(transport.get_extra_info("peername"))
        _keep_alive(transport.get_extra_info("socket"))
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(
            HANDSHAKE_S, self._refuse, f"its handshake took longer than {HANDSHAKE_S:g} s"
        )
        if not self._gateway.has_capacity(self.peer):
            self._refuse("too many connections are open")
            return
        self._gateway.connections.add(self)
        self._tls = self._gateway.tls_files.context().wrap_bio(
            self._incoming, self._outgoing, server_side=True
        )

    def data_received(self, data: bytes) -> None:
        """From the network: the handshake first, then what is for the server inside."""
        self._incoming.write(data)
        if self.certificate is None and not self._shake_hands():
            return
        try:
            while plain := self._tls.read(_CHUNK_BYTES):
                self._forward(plain)
            self.transport.close()  # the peer said that it is done
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._refuse(describe_server_handshake_error(error))

    def _shake_hands(self) -> bool:
        """True when it is over and the peer is welcome."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._refuse(describe_server_handshake_error(error))
            return False
        self._deadline.cancel()
        try:
            return self._accept_peer(
                parse_certificate(self._tls.getpeercert(binary_form=True) or b"")
            )
        except ValueError as error:
            self._refuse(f"its certificate cannot be read: {error}")
            return False

    def _accept_peer(self, certificate: Certificate) -> bool:
        reason = self._gateway.refusal_reason(certificate)
        if reason:
            self._tls.write(REFUSAL_PREFIX + reason.encode() + b"\n")
            self._refuse(reason)
            return False
        self.certificate = certificate
        self._flush()
        self.transport.pause_reading()  # until somebody inside takes what comes
        self._gateway.start_backend_connection(self)
        return True

    async def connect_backend(self) -> None:
        """Make the line to the server inside, or hang up."""
        loop = asyncio.get_running_loop()
        line = named_socket(self.peer, self.certificate.owner if self.certificate else "")
        try:
            with ExitStack() as unless_made:
                unless_made.callback(line.close)
                await loop.sock_connect(line, str(self._gateway.backend_path))
                await loop.create_unix_connection(lambda: BackendConnection(self), sock=line)
                unless_made.pop_all()
        except OSError as error:
            log.error("cannot reach the server behind the door: %s", error)
            self.abort()

    def backend_connected(self, backend: BackendConnection) -> None:
        """The line to the server inside was made."""
        if self.transport.is_closing():
            backend.transport.close()
            return
        self._backend = backend
        for data in self._pending:
            backend.transport.write(data)
        self._pending.clear()
        self.transport.resume_reading()

    def _forward(self, plaintext: bytes) -> None:
        if self._backend is not None:
            self._backend.transport.write(plaintext)
        else:
            self._pending.append(plaintext)

    def send(self, plaintext: bytes) -> None:
        """From the server inside to the network."""
        if not self.transport.is_closing():
            self._tls.write(plaintext)
            self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self.transport.write(self._outgoing.read())

    def _refuse(self, reason: str) -> None:
        self._gateway.log_refusal(self.peer, reason)
        self._flush()  # the alert, or the reason in words
        self.transport.close()
        self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(
            HANDSHAKE_S, self.transport.abort
        )  # should it not take them

    def pause_writing(self) -> None:
        """The network is slower than the server inside."""
        if self._backend is not None:
            self._backend.transport.pause_reading()

    def resume_writing(self) -> None:
        """The network has caught up."""
        if self._backend is not None:
            self._backend.transport.resume_reading()

    def eof_received(self) -> bool:
        """The peer is gone."""
        return False

    def abort(self) -> None:
        """End it now."""
        self.transport.abort()
        if self._backend is not None:
            self._backend.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """The peer is gone, so the server inside is told."""
        self._deadline.cancel()
        if self._backend is None:
            self.unregister()
        else:
            self._backend.transport.close()

    def backend_lost(self, backend: BackendConnection) -> None:
        """The line to the server inside is no more."""
        if self._backend is backend and not self.transport.is_closing():
            self._backend = None
            self.transport.close()
        else:
            self.unregister()

    def unregister(self) -> None:
        """Nothing of it stays."""
        self._gateway.connections.discard(self)


class BackendConnection(asyncio.Protocol):
    """The same connection on the side of the server."""

    def __init__(self, client: ClientConnection) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server inside has taken it."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._client.backend_connected(self)

    def data_received(self, data: bytes) -> None:
        """For the network."""
        self._client.send(data)

    def pause_writing(self) -> None:
        """The server inside is slower than the network."""
        self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._client.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """The server hung up: so does the door, after what is still to be sent."""
        self._client.backend_lost(self)


def _listen(address: str) -> socket.socket:
    host, port = parse_endpoint(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise Conflict(
            f"cannot listen on {address}: {error.strerror}",
            "choose another address or port, or end who has it",
        ) from error
    listener.setblocking(False)
    return listener


def _keep_alive(connection: socket.socket) -> None:
    """A peer that lost its power is gone after a minute, not after hours."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _address_of(peer: str) -> str:
    return peer.rpartition(":")[0]


def _format_address(name: tuple[str, int]) -> str:
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
