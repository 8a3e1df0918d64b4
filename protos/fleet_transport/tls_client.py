"""Implements the client's side of TLS: opens channels that accept only the named party, and
explains failed connections.
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
from fleet_transport.file_stamp import FileStamp, file_stamp
from fleet_transport.tls_errors import (
    REFUSAL_PREFIX,
    describe_rejected_client,
    describe_rejected_server,
    is_unknown_issuer,
)
from fleet_transport.tls_identity import TlsFiles

PROBE_S = 3.0
_FIX_HINT = "deploy the host again, or issue a user's files again with `fleetctl trust issue`"
Options = Sequence[tuple[str, Any]]


def open_channel(
    address: str, tls: TlsFiles | None = None, name: str = "", options: Options = ()
) -> aio.Channel:
    """Open a channel to `address`. With `tls`, the channel accepts only a server that has the DNS
    name `name` in its certificate, whatever the server's address.

    Without `tls`, only unix: and loopback addresses are allowed. Raises ConfigError for any other
    address, and for an unusable TLS file, which the error names.
    """
    if tls is None:
        if not is_local(address):
            message = f"{address} is not on this machine, so the connection needs TLS"
            raise ConfigError(
                message,
                "create certificates with `fleetctl init --fleet`, and name their folder with"
                " --trust DIR",
            )
        return aio.insecure_channel(address, options=list(options))
    client_context(tls)  # names an unusable file; with gRPC alone the channel never connects
    credentials = grpc.ssl_channel_credentials(
        _read_pem(tls.authorities), _read_file(tls.key), _read_pem(tls.certificate)
    )
    return aio.secure_channel(
        address, credentials, options=[*options, ("grpc.ssl_target_name_override", name)]
    )


class ReloadingChannel:
    """A channel that is created at its first use. It is created again after its TLS files have
    changed, because gRPC reads them only once.
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
        """Return the channel in use. Create it first if necessary. Raises ConfigError, which names
        the file, for an unusable TLS file.
        """
        if self._channel is None:
            self._stamps = self._read_stamps()
            self._channel = open_channel(self.address, self._tls, self._name, self._options)
        return self._channel

    async def refresh(self) -> None:
        """Close the channel if its TLS files have changed since it was created. Call this before
        the first call to a peer that was lost.
        """
        if self._channel is not None and self._read_stamps() != self._stamps:
            await self.close()

    async def explain_failure(self) -> str:
        """Return why the channel cannot connect, as `explain_connection_failure` does."""
        return await explain_connection_failure(self.address, self._tls, self._name)

    @property
    def is_connected(self) -> bool:
        """Whether the peer has accepted the connection, although it may not answer calls."""
        return (
            self._channel is not None
            and self._channel.get_state() is grpc.ChannelConnectivity.READY
        )

    async def close(self) -> None:
        """Close the channel. The next use opens another channel."""
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
    """Return whether the address is a Unix socket or a loopback address. No other machine can reach
    such an address.
    """
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def explain_connection_failure(
    address: str, tls: TlsFiles | None, name: str, timeout_s: float = PROBE_S
) -> str:
    """Return why a channel to `address` cannot connect. This tries a connection of its own, with a
    handshake if there is TLS. Empty if that works.

    gRPC reports no more than "Socket closed" to a client. Takes up to `timeout_s` seconds. Never
    raises.
    """
    if tls is None:
        return await asyncio.to_thread(_probe_without_tls, address, timeout_s)
    return await asyncio.to_thread(_probe, address, tls, name, timeout_s)


def _probe_without_tls(address: str, timeout_s: float) -> str:
    try:
        _connect(address, timeout_s).close()
    except (OSError, ValueError) as error:
        return _describe_connect_error(error)
    return ""


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
            with context.wrap_socket(connection, server_hostname=name) as secured:
                # with TLS 1.3 a server refuses after the client's handshake is over
                return _read_refusal(secured)
        except ssl.SSLError as error:
            other = _describe_other(address, tls, timeout_s) if is_unknown_issuer(error) else ""
            return other or describe_rejected_server(error, name) or describe_rejected_client(error)
        except TimeoutError:
            return "a program listens there but does not answer"
        except OSError:
            return "the server closed the connection during the handshake"


def _describe_other(address: str, tls: TlsFiles, timeout_s: float) -> str:
    """Return whose certificate the server shows, if we trust only certificates that we issued, and
    not this one. Empty if we trust a whole authority, or if nobody of a fleet is named.
    """
    trusted = parse_certificates(_read_pem(tls.authorities))
    if any(each.is_authority for each in trusted):
        return ""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    try:
        with (
            closing(_connect(address, timeout_s)) as connection,
            context.wrap_socket(connection) as secured,
        ):
            shown = parse_certificate(secured.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError):
        return ""
    if shown.role is None:
        return ""
    expected = " or ".join(sorted({each.owner for each in trusted}))
    if shown.owner == expected:
        return f"the server shows an old or forged certificate of {shown.owner}: deploy it again"
    return (
        f"the server shows a certificate that names {shown.owner}; only the one that was issued to"
        f" {expected} is accepted here"
    )


def _connect(address: str, timeout_s: float) -> socket.socket:
    """Connect to a TCP or unix: address. A unix: address can be the end of a tunnel on this
    machine.
    """
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
    """Return why the server refuses the client. Empty if it does not refuse.

    The first bytes of the server show this. They are a TLS alert, the gateway's reason in words, or
    HTTP/2, which means that the server does not refuse.
    """
    try:
        first_bytes = connection.recv(512)
    except TimeoutError:
        return ""
    if first_bytes.startswith(REFUSAL_PREFIX):
        return (
            "the server refused: "
            + first_bytes.removeprefix(REFUSAL_PREFIX).decode("utf-8", errors="replace").strip()
        )
    return "" if first_bytes else "the server closed the connection after the handshake"


def _describe_connect_error(error: Exception) -> str:
    kinds: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str], ...] = (
        ((ConnectionRefusedError, FileNotFoundError), "nothing listens there"),
        (TimeoutError, "no answer: check that the host is up and that its firewall opens the port"),
        (socket.gaierror, "unknown host name"),
        (ValueError, "the address is not HOST:PORT"),
    )
    return next(
        (text for kind, text in kinds if isinstance(error, kind)),
        str(getattr(error, "strerror", "") or error),
    )


def client_context(tls: TlsFiles) -> ssl.SSLContext:
    """Return an ssl context that verifies a server as `open_channel` does. Raises ConfigError,
    which names the unusable file.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # an agent's own certificate may be the only trusted one
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["h2"])
    load_tls_files(context, tls)
    return context


def load_tls_files(context: ssl.SSLContext, tls: TlsFiles, now_unix_s: float | None = None) -> None:
    """Load authorities, certificate and key into a context. With `now_unix_s`, skip authorities
    that have expired by then.

    Raises ConfigError, which names the file, if a file is missing or damaged.
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
        raise ConfigError(f"{tls.authorities}: all authorities have expired", _FIX_HINT)
    try:
        context.load_verify_locations(cadata=b"".join(trusted))
    except (ssl.SSLError, ValueError) as error:
        message = f"{tls.authorities} holds no usable certificate: {_short_reason(error)}"
        raise ConfigError(message, _FIX_HINT) from error
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        message = f"{tls.key} is not the key of {tls.certificate.name}: {_short_reason(error)}"
        raise ConfigError(message, _FIX_HINT) from error


def _no_password() -> str:
    raise ValueError("encrypted keys are not supported")


def _short_reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "damaged").lower().replace("_", " ")
    return str(error)


def _read_pem(path: Path) -> bytes:
    """Return the content of a PEM file. Raises ConfigError, which names the file, if it has no
    readable certificate.
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
            f"cannot read {path}: {error.strerror}",
            "create this file with `fleetctl init --fleet` or `fleetctl deploy`",
        ) from error
