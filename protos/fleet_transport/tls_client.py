"""Owns the client's side of TLS: channels that know whom they must meet, and why one could not. Serves nothing: that is the door."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from fleet_protos.errors import ConfigError
from fleet_transport.certificate import certificates, ders, parse
from fleet_transport.revocation_list import Stamp, stamp_of
from fleet_transport.tls_errors import GREETING, refused_by_client, refused_by_server
from fleet_transport.tls_identity import TlsFiles

PROBE_S = 3.0
_MEND = "deploy the host again; a user's files: `fleetctl trust issue`"
Options = Sequence[tuple[str, Any]]


def channel(address: str, tls: TlsFiles | None = None, name: str = "", options: Options = ()) -> aio.Channel:
    """A channel to `address`; with `tls` only to the party whose certificate carries the DNS name `name`, whatever its address.

    Without `tls` only unix: and loopback. Raises ConfigError, which names the file, for TLS files that cannot be used.
    """
    if tls is None:
        if not is_local(address):
            told = f"{address} is not on this machine, so it is reached by TLS only"
            raise ConfigError(told, "`fleetctl init` makes the certificates; --trust DIR names them")
        return aio.insecure_channel(address, options=list(options))
    client_context(tls)  # says which file is of no use, and why; gRPC would only never connect
    credentials = grpc.ssl_channel_credentials(_pem(tls.authorities), _text(tls.key), _pem(tls.certificate))
    return aio.secure_channel(address, credentials, options=[*options, ("grpc.ssl_target_name_override", name)])


class Line:
    """A channel that is made at its first use, and anew when its TLS files have changed: gRPC reads them once."""

    def __init__(self, address: str, tls: TlsFiles | None, name: str, options: Options = ()) -> None:
        self.address = address
        self._tls = tls
        self._name = name
        self._options = options
        self._channel: aio.Channel | None = None
        self._made_of: tuple[Stamp | None, ...] = ()

    def channel(self) -> aio.Channel:
        """The one in use. Raises ConfigError, which names the file, for files that cannot be used."""
        if self._channel is None:
            self._made_of = self._files()
            self._channel = channel(self.address, self._tls, self._name, self._options)
        return self._channel

    async def refresh(self) -> None:
        """Hang up when the files have changed since the channel was made; before a first call of a new contact."""
        if self._channel is not None and self._files() != self._made_of:
            await self.close()

    async def why_not(self) -> str:
        """As `why_not`; empty without TLS."""
        return await why_not(self.address, self._tls, self._name) if self._tls else ""

    async def close(self) -> None:
        """Hang up."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close(None)

    def _files(self) -> tuple[Stamp | None, ...]:
        tls = self._tls
        return tuple(stamp_of(path) for path in (tls.authorities, tls.certificate, tls.key)) if tls else ()


def is_local(address: str) -> bool:
    """True for a Unix socket and for a loopback address, which no other machine can reach."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def why_not(address: str, tls: TlsFiles, name: str, timeout_s: float = PROBE_S) -> str:
    """Why a channel to `address` does not come about, found by a handshake of its own; empty when nothing stands in the way.

    gRPC tells a client no more than "Socket closed". Takes up to `timeout_s`; raises nothing.
    """
    return await asyncio.to_thread(_probe, address, tls, name, timeout_s)


def _probe(address: str, tls: TlsFiles, name: str, timeout_s: float) -> str:
    try:
        context = client_context(tls)
    except ConfigError as error:
        return error.message
    try:
        connection = _connected(address, timeout_s)
    except (OSError, ValueError) as error:
        return _unreached(error)
    with closing(connection):
        try:
            with context.wrap_socket(connection, server_hostname=name) as line:
                return _last_word(line)  # with TLS 1.3 a server's refusal comes after the client's handshake is over
        except ssl.SSLError as error:
            return refused_by_client(error, name) or refused_by_server(error)
        except TimeoutError:
            return "something listens there that does not answer"
        except OSError:
            return "it hung up in the middle of the handshake"


def _connected(address: str, timeout_s: float) -> socket.socket:
    """Of a unix: address too: the end of a tunnel on this machine."""
    if not address.startswith("unix:"):
        host, _, port = address.rpartition(":")
        return socket.create_connection((host.strip("[]"), int(port)), timeout_s)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        connection.connect(address.removeprefix("unix:"))
    except OSError:
        connection.close()
        raise
    return connection


def _last_word(line: ssl.SSLSocket) -> str:
    """What the server says first, and it does so at once: an alert, the door's reason in words, or HTTP/2, which is no reason."""
    try:
        said = line.recv(512)
    except TimeoutError:
        return ""
    if said.startswith(GREETING):
        return "it refused: " + said.removeprefix(GREETING).decode("utf-8", errors="replace").strip()
    return "" if said else "it hung up after the handshake"


def _unreached(error: Exception) -> str:
    kinds: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
        ((ConnectionRefusedError, FileNotFoundError), "nothing listens there"),
        (TimeoutError, "no answer at all: is the host up, and is the port open in its firewall?"),
        (socket.gaierror, "no such host name"),
        (ValueError, "it is not HOST:PORT"),
    )
    return next((text for kind, text in kinds if isinstance(error, kind)), str(getattr(error, "strerror", "") or error))


def client_context(tls: TlsFiles) -> ssl.SSLContext:
    """The context of Python's ssl that does what `channel` does. Raises ConfigError, which names the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # an agent's own certificate may be all that is trusted
    context.set_alpn_protocols(["h2"])
    load(context, tls)
    return context


def load(context: ssl.SSLContext, tls: TlsFiles, now_unix_s: float | None = None) -> None:
    """Take the three files into a context; with `now_unix_s` only authorities that have not ended.

    Raises ConfigError, which names the file that is absent or damaged.
    """
    authorities = _pem(tls.authorities)
    _pem(tls.certificate)
    _text(tls.key)
    trusted = [der for der in ders(authorities) if now_unix_s is None or parse(der).not_after_unix_s >= now_unix_s]
    if not trusted:
        raise ConfigError(f"{tls.authorities}: every authority in it has expired", _MEND)
    try:
        context.load_verify_locations(cadata=b"".join(trusted))
    except (ssl.SSLError, ValueError) as error:
        told = f"{tls.authorities}: it holds no usable certificate ({_short(error)})"
        raise ConfigError(told, _MEND) from error
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        told = f"{tls.key}: it is not the key of {tls.certificate.name} ({_short(error)})"
        raise ConfigError(told, _MEND) from error


def _no_password() -> str:
    raise ValueError("it is encrypted, which is not supported")


def _short(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is damaged").lower().replace("_", " ")
    return str(error)


def _pem(path: Path) -> bytes:
    """The text of a PEM file with at least one readable certificate. Raises ConfigError, which names it."""
    text = _text(path)
    try:
        certificates(text)
        text.decode("ascii")
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", _MEND) from error
    return text


def _text(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", "`fleetctl init` and `fleetctl deploy` make it") from error
