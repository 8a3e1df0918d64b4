"""Owns the client's side of TLS: channels that know whom they must meet, and why one could not.
Serves nothing: that is the door.
"""

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
from fleet_transport.certificate import der_blocks, parse_certificate, parse_certificates
from fleet_transport.revocation_list import FileStamp, file_stamp
from fleet_transport.tls_errors import (
    REFUSAL_PREFIX,
    describe_rejected_client,
    describe_rejected_server,
)
from fleet_transport.tls_identity import TlsFiles

PROBE_S = 3.0
_FIX_HINT = "deploy the host again; a user's files: `fleetctl trust issue`"
Options = Sequence[tuple[str, Any]]


def open_channel(
    address: str, tls: TlsFiles | None = None, name: str = "", options: Options = ()
) -> aio.Channel:
    """A channel to `address`; with `tls` only to the party whose certificate carries the DNS name
    `name`, whatever its address.

    Without `tls` only unix: and loopback. Raises ConfigError, which names the file, for TLS files
    that cannot be used.
    """
    if tls is None:
        if not is_local(address):
            message = f"{address} is not on this machine, so it is reached by TLS only"
            raise ConfigError(
                message, "`fleetctl init` makes the certificates; --trust DIR names them"
            )
        return aio.insecure_channel(address, options=list(options))
    client_context(tls)  # says which file is of no use, and why; gRPC would only never connect
    credentials = grpc.ssl_channel_credentials(
        _read_pem(tls.authorities), _read_file(tls.key), _read_pem(tls.certificate)
    )
    return aio.secure_channel(
        address, credentials, options=[*options, ("grpc.ssl_target_name_override", name)]
    )


class ReloadingChannel:
    """A channel that is made at its first use, and anew when its TLS files have changed: gRPC reads
    them once.
    """

    def __init__(
        self, address: str, tls: TlsFiles | None, name: str, options: Options = ()
    ) -> None:
        self.address = address
        self._tls = tls
        self._name = name
        self._options = options
        self._channel: aio.Channel | None = None
        self._stamps: tuple[FileStamp | None, ...] = ()

    def channel(self) -> aio.Channel:
        """The one in use. Raises ConfigError, which names the file, for files that cannot be used."""
        if self._channel is None:
            self._stamps = self._read_stamps()
            self._channel = open_channel(self.address, self._tls, self._name, self._options)
        return self._channel

    async def refresh(self) -> None:
        """Hang up when the files have changed since the channel was made; before a first call of a
        new contact.
        """
        if self._channel is not None and self._read_stamps() != self._stamps:
            await self.close()

    async def explain_failure(self) -> str:
        """As `why_not`; empty without TLS."""
        return (
            await explain_connection_failure(self.address, self._tls, self._name)
            if self._tls
            else ""
        )

    async def close(self) -> None:
        """Hang up."""
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close(None)

    def _read_stamps(self) -> tuple[FileStamp | None, ...]:
        tls = self._tls
        return (
            tuple(file_stamp(path) for path in (tls.authorities, tls.certificate, tls.key))
            if tls
            else ()
        )


def is_local(address: str) -> bool:
    """True for a Unix socket and for a loopback address, which no other machine can reach."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def explain_connection_failure(
    address: str, tls: TlsFiles, name: str, timeout_s: float = PROBE_S
) -> str:
    """Why a channel to `address` does not come about, found by a handshake of its own; empty when
    nothing stands in the way.

    gRPC tells a client no more than "Socket closed". Takes up to `timeout_s`; raises nothing.
    """
    return await asyncio.to_thread(_probe, address, tls, name, timeout_s)


def _probe(address: str, tls: TlsFiles, name: str, timeout_s: float) -> str:
    try:
        context = client_context(tls)
    except ConfigError as error:
        return error.message
    try:
        connection = _connect(address, timeout_s)
    except (OSError, ValueError) as error:
        return _describe_connect_error(error)
    with closing(connection):
        try:
            with context.wrap_socket(connection, server_hostname=name) as line:
                return _read_refusal(
                    line
                )  # with TLS 1.3 a server's refusal comes after the client's handshake is over
        except ssl.SSLError as error:
            return describe_rejected_server(error, name) or describe_rejected_client(error)
        except TimeoutError:
            return "something listens there that does not answer"
        except OSError:
            return "it hung up in the middle of the handshake"


def _connect(address: str, timeout_s: float) -> socket.socket:
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


def _read_refusal(connection: ssl.SSLSocket) -> str:
    """What the server says first, and it does so at once: an alert, the door's reason in words, or
    HTTP/2, which is no reason.
    """
    try:
        first_bytes = connection.recv(512)
    except TimeoutError:
        return ""
    if first_bytes.startswith(REFUSAL_PREFIX):
        return (
            "it refused: "
            + first_bytes.removeprefix(REFUSAL_PREFIX).decode("utf-8", errors="replace").strip()
        )
    return "" if first_bytes else "it hung up after the handshake"


def _describe_connect_error(error: Exception) -> str:
    kinds: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
        ((ConnectionRefusedError, FileNotFoundError), "nothing listens there"),
        (TimeoutError, "no answer at all: is the host up, and is the port open in its firewall?"),
        (socket.gaierror, "no such host name"),
        (ValueError, "it is not HOST:PORT"),
    )
    return next(
        (text for kind, text in kinds if isinstance(error, kind)),
        str(getattr(error, "strerror", "") or error),
    )


def client_context(tls: TlsFiles) -> ssl.SSLContext:
    """The context of Python's ssl that does what `channel` does. Raises ConfigError, which names
    the file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= (
        ssl.VERIFY_X509_PARTIAL_CHAIN
    )  # an agent's own certificate may be all that is trusted
    context.set_alpn_protocols(["h2"])
    load_tls_files(context, tls)
    return context


def load_tls_files(context: ssl.SSLContext, tls: TlsFiles, now_unix_s: float | None = None) -> None:
    """Take the three files into a context; with `now_unix_s` only authorities that have not ended.

    Raises ConfigError, which names the file that is absent or damaged.
    """
    authorities = _read_pem(tls.authorities)
    _read_pem(tls.certificate)
    _read_file(tls.key)
    trusted = [
        der
        for der in der_blocks(authorities)
        if now_unix_s is None or parse_certificate(der).not_after_unix_s >= now_unix_s
    ]
    if not trusted:
        raise ConfigError(f"{tls.authorities}: every authority in it has expired", _FIX_HINT)
    try:
        context.load_verify_locations(cadata=b"".join(trusted))
    except (ssl.SSLError, ValueError) as error:
        message = f"{tls.authorities}: it holds no usable certificate ({_short_reason(error)})"
        raise ConfigError(message, _FIX_HINT) from error
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        message = f"{tls.key}: it is not the key of {tls.certificate.name} ({_short_reason(error)})"
        raise ConfigError(message, _FIX_HINT) from error


def _no_password() -> str:
    raise ValueError("it is encrypted, which is not supported")


def _short_reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is damaged").lower().replace("_", " ")
    return str(error)


def _read_pem(path: Path) -> bytes:
    """The text of a PEM file with at least one readable certificate. Raises ConfigError, which
    names it.
    """
    text = _read_file(path)
    try:
        parse_certificates(text)
        text.decode("ascii")
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", _FIX_HINT) from error
    return text


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", "`fleetctl init` and `fleetctl deploy` make it"
        ) from error
