"""Handles one connection from the network through the gateway: first the TLS handshake, then the
bytes to and from the gRPC server.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from fleet_transport.caller import named_socket
from fleet_transport.certificate import Certificate, parse_certificate
from fleet_transport.reset_limit import ResetCounter
from fleet_transport.tls_errors import (
    NO_ROOM_ALERT,
    REFUSAL_PREFIX,
    describe_server_handshake_error,
)
from fleet_transport.tls_reload import ReloadingTlsFiles

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
_CHUNK_BYTES = 64 << 10


class Gateway(Protocol):
    """Defines what a connection needs from the gateway that accepted it."""

    backend_path: Path
    tls_files: ReloadingTlsFiles
    connections: dict[ClientConnection, None]

    def make_room(self, peer: str) -> bool:
        """Return whether a connection from this peer fits, after dropping a stranger for it."""

    def refusal_reason(self, certificate: Certificate) -> str:
        """Return why the certificate is refused now. Empty if it is accepted."""

    def log_refusal(self, peer: str, reason: str) -> None:
        """Log that a peer is refused."""

    def allows_resets(self, certificate: Certificate, resets: int) -> bool:
        """Return whether the holder of the certificate may have so many more streams reset now."""

    def start_backend_connection(self, client: ClientConnection) -> None:
        """Start to connect an accepted peer to the server behind the gateway."""


class ClientConnection(asyncio.Protocol):
    """The network side of a connection. Handles TLS, and forwards bytes to and from the backend."""

    def __init__(self, gateway: Gateway) -> None:
        self.peer = ""
        self.certificate: Certificate | None = None
        self.is_silent = True
        self._gateway = gateway
        self._backend: BackendConnection | None = None
        self._resets_by_peer = ResetCounter(after_preface=True)
        self._resets_by_backend = ResetCounter(after_preface=False)
        self._pending: list[bytes] = []  # for the backend, until it is connected
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake with a new peer."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.peer = format_address(transport.get_extra_info("peername"))
        _keep_alive(transport.get_extra_info("socket"))
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(
            HANDSHAKE_S, self._refuse, f"the peer's handshake took longer than {HANDSHAKE_S:g} s"
        )
        if not self._gateway.make_room(self.peer):
            self._refuse_for_room("too many connections are open")
            return
        self._gateway.connections[self] = None
        self._tls = self._gateway.tls_files.context().wrap_bio(
            self._incoming, self._outgoing, server_side=True
        )

    def data_received(self, data: bytes) -> None:
        """Pass bytes from the network to the TLS handshake. After the handshake, forward their
        plaintext to the backend.
        """
        if self.transport.is_closing():
            return
        self.is_silent = False
        self._incoming.write(data)
        if self.certificate is None and not self._shake_hands():
            return
        try:
            while plain := self._tls.read(_CHUNK_BYTES):
                if not self._is_allowed(self._resets_by_peer.count(plain)):
                    return
                self._forward(plain)
            self.transport.close()  # the peer ended its TLS session
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._refuse(describe_server_handshake_error(error))

    def _shake_hands(self) -> bool:
        """Continue the handshake. Return True once it is complete and the peer is accepted."""
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
            self._refuse(f"the peer's certificate cannot be read: {error}")
            return False

    def _accept_peer(self, certificate: Certificate) -> bool:
        reason = self._gateway.refusal_reason(certificate)
        if reason:
            self._tls.write(REFUSAL_PREFIX + reason.encode() + b"\n")
            self._refuse(reason)
            return False
        self.certificate = certificate
        self._flush()
        self.transport.pause_reading()  # until the backend is connected
        self._gateway.start_backend_connection(self)
        return True

    async def connect_backend(self) -> None:
        """Connect to the backend. If the backend cannot be reached, close the connection."""
        loop = asyncio.get_running_loop()
        owner = self.certificate.owner if self.certificate else ""
        connection = named_socket(self.peer, owner)
        try:
            with ExitStack() as on_failure:
                on_failure.callback(connection.close)
                await loop.sock_connect(connection, str(self._gateway.backend_path))
                await loop.create_unix_connection(lambda: BackendConnection(self), sock=connection)
                on_failure.pop_all()
        except OSError as error:
            log.error("cannot reach the gRPC server on %s: %s", self._gateway.backend_path, error)
            self.abort()

    def backend_connected(self, backend: BackendConnection) -> None:
        """Forward the bytes that have arrived so far, and continue to read."""
        if self.transport.is_closing():
            backend.transport.close()
            return
        self._backend = backend
        for data in self._pending:
            backend.transport.write(data)
        self._pending.clear()
        self.transport.resume_reading()

    def _is_allowed(self, resets: int) -> bool:
        """Return whether so many more streams may be reset; if not, close the connection."""
        certificate = self.certificate
        if not resets or certificate is None or self._gateway.allows_resets(certificate, resets):
            return True
        self._gateway.log_refusal(
            self.peer, f"{certificate.owner} opens and resets too many streams"
        )
        self.abort()
        return False

    def _forward(self, plaintext: bytes) -> None:
        if self._backend is not None:
            self._backend.transport.write(plaintext)
        else:
            self._pending.append(plaintext)

    def send(self, plaintext: bytes) -> None:
        """Send plaintext from the backend to the network."""
        if not self.transport.is_closing() and self._is_allowed(
            self._resets_by_backend.count(plaintext)
        ):
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
        # abort if the peer does not read them
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.transport.abort)

    def drop(self) -> None:
        """Give the place of this stranger to a newer connection."""
        self._refuse_for_room(
            "the peer has shown no certificate yet, and too many newer connections have come"
        )

    @property
    def is_stranger(self) -> bool:
        """Whether it is open and has shown no certificate so far."""
        return self.certificate is None and not self.transport.is_closing()

    def _refuse_for_room(self, reason: str) -> None:
        if self.is_silent:  # after the server's first message an alert must be encrypted
            self.transport.write(NO_ROOM_ALERT)
        self._refuse(reason)

    def pause_writing(self) -> None:
        """Stop reading from the backend, because the network is slower."""
        if self._backend is not None:
            self._backend.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read from the backend again, because the network has caught up."""
        if self._backend is not None:
            self._backend.transport.resume_reading()

    def eof_received(self) -> bool:
        """Close the connection, because the peer has closed its side."""
        return False

    def abort(self) -> None:
        """Close both sides at once. Bytes that have not been sent yet are dropped."""
        self.transport.abort()
        if self._backend is not None:
            self._backend.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Close the backend's side too, because the peer is gone."""
        self._deadline.cancel()
        if self._backend is None:
            self.unregister()
        else:
            self._backend.transport.close()

    def backend_lost(self, backend: BackendConnection) -> None:
        """Close the network side. If that side is closed already, unregister the connection."""
        if self._backend is backend and not self.transport.is_closing():
            self._backend = None
            self.transport.close()
        else:
            self.unregister()

    def unregister(self) -> None:
        """Remove the connection from the gateway."""
        self._gateway.connections.pop(self, None)


class BackendConnection(asyncio.Protocol):
    """The side of a connection between the gateway and the gRPC server."""

    def __init__(self, client: ClientConnection) -> None:
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connect this side to the network side of the connection."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._client.backend_connected(self)

    def data_received(self, data: bytes) -> None:
        """Send the server's bytes to the network."""
        self._client.send(data)

    def pause_writing(self) -> None:
        """Stop reading from the network, because the server is slower."""
        self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read from the network again, because the server has caught up."""
        self._client.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Close the network side, after the remaining bytes have been sent."""
        self._client.backend_lost(self)


def _keep_alive(connection: socket.socket) -> None:
    """Make the kernel probe an idle peer. A peer that has lost its power is then dropped after a
    minute.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def format_address(name: tuple[str, int]) -> str:
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
