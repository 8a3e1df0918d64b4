"""Owns a look from outside at every TCP port on which a host listens: what does it say to who has
neither certificate nor token?
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.lab.hosts import LabHost

LIMIT_S: Final = 3.0
CLOSED: Final = "closed"  # nothing is reached from here
WANTS_CERTIFICATE: Final = "wants a certificate"
WANTS_TOKEN: Final = "wants a token"
OPEN: Final = "OPEN"


@dataclass(frozen=True, slots=True)
class Listener:
    """One port of a host, and whose it is."""

    host: str
    port: int
    process: str
    answer: str


def look(host: LabHost, *besides: int) -> list[Listener]:
    """Every port on which the host listens beside loopback and `besides`, as it answers this
    machine.
    """
    found = sorted(listener for listener in _listening(host) if listener[0] not in besides)
    return [
        Listener(host.name, port, process, _answer(host.address, port)) for port, process in found
    ]


def heard_over_tls(address: str, port: int, cluster: Path | None = None) -> bytes:
    """What a port answers to the first words of HTTP/2, to a client with the certificate in that
    folder or with none.

    In TLS 1.3 who is refused learns it in answer to his first words: nothing comes, or an alert.
    Raises OSError where there is no TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if cluster is not None:
        context.load_cert_chain(cluster / "host.crt", cluster / "host.key")
    with (
        socket.create_connection((address, port), LIMIT_S) as plain,
        context.wrap_socket(plain) as line,
    ):
        try:
            line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            return line.recv(4096)
        except (ssl.SSLError, ConnectionError):
            return b""


def _listening(host: LabHost) -> Iterator[tuple[int, str]]:
    for line in host.run(["ss", "-ltnpH"]).stdout.splitlines():
        place = line.split()[3]
        address, _, port = place.rpartition(":")
        process = line.partition('(("')[2].partition('"')[0]
        if address.strip("[]").removeprefix("::ffff:") not in ("127.0.0.1", "::1"):
            yield int(port), process


def _answer(address: str, port: int) -> str:
    try:
        return OPEN if heard_over_tls(address, port) else WANTS_CERTIFICATE
    except ConnectionRefusedError:
        return CLOSED
    except OSError:
        return _over_http(address, port)


def _over_http(address: str, port: int) -> str:
    try:
        with socket.create_connection((address, port), LIMIT_S) as line:
            line.sendall(f"GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n".encode())
            heard = line.recv(4096)
    except TimeoutError:
        return OPEN
    except OSError:
        return CLOSED
    return WANTS_TOKEN if heard.startswith(b"HTTP/1.1 401") else OPEN
