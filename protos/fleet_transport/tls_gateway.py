"""Owns the TLS door in front of a gRPC server's Unix socket: who may come in, why another may not. Reads nothing of what passes.

gRPC's own TLS tells neither the peer nor, above its lowest log level, the reason of a refusal, takes no list of revoked
certificates and cannot end a connection whose certificate was revoked (docs/decisions/0010).
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
from fleet_transport.caller import line_of
from fleet_transport.certificate import Certificate, parse
from fleet_transport.revocation_list import RevokedList
from fleet_transport.sockets import endpoint
from fleet_transport.tls_errors import GREETING, refused_by_door, unwelcome
from fleet_transport.tls_identity import Role, TlsFiles
from fleet_transport.tls_reload import Keys

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
_LOOK_S = 2.0  # how soon a revoked certificate loses the connections that it has
_TELL_AGAIN_S = 60.0
_BACKLOG = 256
_MOST_CONNECTIONS = 4096
_MOST_STRANGERS, _MOST_STRANGERS_OF_ONE = 512, 64  # connections whose handshake is not over: in all, from one address
_CHUNK_BYTES = 64 << 10


class Door:
    """Listens on `address` and lets those in who hold a certificate of one of `roles`. `serve` must be running."""

    def __init__(
        self, address: str, inner: str, tls: TlsFiles, roles: frozenset[Role], taken: Callable[[Certificate], None] = lambda _: None
    ) -> None:
        """`inner` is the unix:PATH of the gRPC server; `taken` as for `Keys`.

        Raises ConfigError for files or an address of no use, Conflict for one in use.
        """
        self.inner = Path(inner.removeprefix("unix:"))
        self.roles = roles
        self.keys = Keys(tls, taken)
        self.revoked = RevokedList(tls.revoked)
        self.open: set[Outside] = set()
        self._complaints = Complaints()
        self._tasks = asyncio.TaskGroup()
        self._socket = _listen(address)
        self.address = _shown(self._socket.getsockname())

    async def serve(self) -> None:
        """Until cancelled; then every connection is closed."""
        server = await asyncio.get_running_loop().create_server(lambda: Outside(self), sock=self._socket)
        try:
            async with server, self._tasks:
                while True:
                    await asyncio.sleep(_LOOK_S)
                    self.keys.context()  # a new certificate is taken, and told, also while nobody comes
                    self._close_unwelcome()
        finally:
            await self._close_all()

    def connect(self, outside: Outside) -> None:
        """Make the line from a peer that is welcome to the server inside."""
        self._tasks.create_task(outside.connect())

    async def _close_all(self) -> None:
        while True:  # a transport closes a turn of the loop after it is told to, and the one behind it a turn later
            for line in list(self.open):
                line.abort()
            await asyncio.sleep(0.01)
            if not self.open:
                return

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[str]:
        """`serve` while inside; yields the address with its real port."""
        async with asyncio.TaskGroup() as tasks:
            serving = tasks.create_task(self.serve())
            try:
                yield self.address
            finally:
                serving.cancel()

    def verdict(self, certificate: Certificate) -> str:
        """Why it is refused now; empty when it is welcome."""
        return unwelcome(certificate, self.roles, self.revoked.find(certificate.fingerprint), time.time_ns() / 1e9)

    def refuse(self, peer: str, reason: str) -> None:
        """One line of the log; the same peer and reason again only once a minute, with the count."""
        told = self._complaints.worth_telling(f"{_host(peer)} {reason}", time.monotonic())
        if told is not None:
            log.warning("refused %s: %s%s", peer, reason, f" ({told} more like it before)" if told else "")

    def has_room(self, peer: str) -> bool:
        """False while too many are connected, or have not shown yet who they are: in all, or from where this peer comes."""
        strangers = [_host(line.peer) for line in self.open if line.certificate is None]
        few = len(strangers) < _MOST_STRANGERS and strangers.count(_host(peer)) < _MOST_STRANGERS_OF_ONE
        return few and len(self.open) < _MOST_CONNECTIONS

    def _close_unwelcome(self) -> None:
        for line in list(self.open):
            reason = self.verdict(line.certificate) if line.certificate else ""
            if reason:
                self.refuse(line.peer, reason)
                line.abort()


class Complaints:
    """What was told of late, so that a peer that tries for ever does not fill the disk."""

    def __init__(self) -> None:
        self._told_s: dict[str, float] = {}
        self._kept = Counter[str]()

    @property
    def count(self) -> int:
        """How many different ones are remembered."""
        return len(self._told_s)

    def worth_telling(self, what: str, now_s: float) -> int | None:
        """How often it was kept quiet since it was last told; None: do not tell it now."""
        if now_s - self._told_s.get(what, -_TELL_AGAIN_S) < _TELL_AGAIN_S:
            self._kept[what] += 1
            return None
        if len(self._told_s) >= _MOST_CONNECTIONS:
            self._told_s.clear()
            self._kept.clear()
        self._told_s[what] = now_s
        return self._kept.pop(what, 0)


class Outside(asyncio.Protocol):
    """One connection from the network: its TLS, and the bytes to and from the server inside."""

    def __init__(self, door: Door) -> None:
        self.peer = ""
        self.certificate: Certificate | None = None
        self._door = door
        self._inside: Inside | None = None
        self._waiting: list[bytes] = []  # for the server inside, until the line to it stands
        self._from, self._to = ssl.MemoryBIO(), ssl.MemoryBIO()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A stranger has come."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.peer = _shown(transport.get_extra_info("peername"))
        _keep_alive(transport.get_extra_info("socket"))
        loop = asyncio.get_running_loop()
        self._limit = loop.call_later(HANDSHAKE_S, self._refuse, f"its handshake took longer than {HANDSHAKE_S:g} s")
        if not self._door.has_room(self.peer):
            self._refuse("too many connections are open")
            return
        self._door.open.add(self)
        self._tls = self._door.keys.context().wrap_bio(self._from, self._to, server_side=True)

    def data_received(self, data: bytes) -> None:
        """From the network: the handshake first, then what is for the server inside."""
        self._from.write(data)
        if self.certificate is None and not self._shake_hands():
            return
        try:
            while plain := self._tls.read(_CHUNK_BYTES):
                self._pass_on(plain)
            self.transport.close()  # the peer said that it is done
        except ssl.SSLWantReadError:
            self._flush()
        except ssl.SSLError as error:
            self._refuse(refused_by_door(error))

    def _shake_hands(self) -> bool:
        """True when it is over and the peer is welcome."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError as error:
            self._refuse(refused_by_door(error))
            return False
        self._limit.cancel()
        try:
            return self._let_in(parse(self._tls.getpeercert(binary_form=True) or b""))
        except ValueError as error:
            self._refuse(f"its certificate cannot be read: {error}")
            return False

    def _let_in(self, certificate: Certificate) -> bool:
        reason = self._door.verdict(certificate)
        if reason:
            self._tls.write(GREETING + reason.encode() + b"\n")
            self._refuse(reason)
            return False
        self.certificate = certificate
        self._flush()
        self.transport.pause_reading()  # until somebody inside takes what comes
        self._door.connect(self)
        return True

    async def connect(self) -> None:
        """Make the line to the server inside, or hang up."""
        loop = asyncio.get_running_loop()
        line = line_of(self.peer, self.certificate.owner if self.certificate else "")
        try:
            with ExitStack() as unless_made:
                unless_made.callback(line.close)
                await loop.sock_connect(line, str(self._door.inner))
                await loop.create_unix_connection(lambda: Inside(self), sock=line)
                unless_made.pop_all()
        except OSError as error:
            log.error("cannot reach the server behind the door: %s", error)
            self.abort()

    def stands(self, inside: Inside) -> None:
        """The line to the server inside was made."""
        if self.transport.is_closing():
            inside.transport.close()
            return
        self._inside = inside
        for data in self._waiting:
            inside.transport.write(data)
        self._waiting.clear()
        self.transport.resume_reading()

    def _pass_on(self, plain: bytes) -> None:
        if self._inside is not None:
            self._inside.transport.write(plain)
        else:
            self._waiting.append(plain)

    def send(self, plain: bytes) -> None:
        """From the server inside to the network."""
        if not self.transport.is_closing():
            self._tls.write(plain)
            self._flush()

    def _flush(self) -> None:
        if self._to.pending:
            self.transport.write(self._to.read())

    def _refuse(self, reason: str) -> None:
        self._door.refuse(self.peer, reason)
        self._flush()  # the alert, or the reason in words
        self.transport.close()
        self._limit.cancel()
        self._limit = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.transport.abort)  # should it not take them

    def pause_writing(self) -> None:
        """The network is slower than the server inside."""
        if self._inside is not None:
            self._inside.transport.pause_reading()

    def resume_writing(self) -> None:
        """The network has caught up."""
        if self._inside is not None:
            self._inside.transport.resume_reading()

    def eof_received(self) -> bool:
        """The peer is gone."""
        return False

    def abort(self) -> None:
        """End it now."""
        self.transport.abort()
        if self._inside is not None:
            self._inside.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """The peer is gone, so the server inside is told."""
        self._limit.cancel()
        if self._inside is None:
            self.ended()
        else:
            self._inside.transport.close()

    def left(self, inside: Inside) -> None:
        """The line to the server inside is no more."""
        if self._inside is inside and not self.transport.is_closing():
            self._inside = None
            self.transport.close()
        else:
            self.ended()

    def ended(self) -> None:
        """Nothing of it stays."""
        self._door.open.discard(self)


class Inside(asyncio.Protocol):
    """The same connection on the side of the server."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server inside has taken it."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._outside.stands(self)

    def data_received(self, data: bytes) -> None:
        """For the network."""
        self._outside.send(data)

    def pause_writing(self) -> None:
        """The server inside is slower than the network."""
        self._outside.transport.pause_reading()

    def resume_writing(self) -> None:
        """It has caught up."""
        self._outside.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """The server hung up: so does the door, after what is still to be sent."""
        self._outside.left(self)


def _listen(address: str) -> socket.socket:
    host, port = endpoint(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise Conflict(f"cannot listen on {address}: {error.strerror}", "choose another address or port, or end who has it") from error
    listener.setblocking(False)
    return listener


def _keep_alive(connection: socket.socket) -> None:
    """A peer that lost its power is gone after a minute, not after hours."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _host(peer: str) -> str:
    return peer.rpartition(":")[0]


def _shown(name: tuple[str, int]) -> str:
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
