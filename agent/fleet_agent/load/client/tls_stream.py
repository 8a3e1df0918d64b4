"""Encrypts and decrypts the data of one TLS connection. Other code reads the socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

_READ_BYTES: Final = 1 << 16


class TlsStream:
    """Implements the client side of one TLS connection. The context decides how the server is
    verified.
    """

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)

    async def handshake(self, link: socket.socket) -> None:
        """Perform the TLS handshake. Raises OSError, of which ssl.SSLError is a kind, if the
        handshake fails or the server cannot be verified.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._tls.do_handshake()
                await self._flush(link)
                return
            except ssl.SSLWantReadError:
                await self._flush(link)
            data = await loop.sock_recv(link, _READ_BYTES)
            if not data:
                raise ConnectionResetError(
                    "the server closed the connection during the TLS handshake"
                )
            self._in.write(data)

    def encrypt(self, data: bytes) -> bytes:
        """Return the encrypted bytes of `data`."""
        self._tls.write(data)
        return self._out.read()

    def decrypt(self, data: bytes) -> tuple[bytes, bool]:
        """Return (decrypted bytes, whether the server has closed TLS). Raises ssl.SSLError if the
        bytes are not valid TLS.
        """
        self._in.write(data)
        plain = bytearray()
        while True:
            try:
                piece = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                return bytes(plain), False
            except ssl.SSLZeroReturnError:
                return bytes(plain), True
            if not piece:
                return bytes(plain), True
            plain += piece

    async def _flush(self, link: socket.socket) -> None:
        if self._out.pending:
            await asyncio.get_running_loop().sock_sendall(link, self._out.read())
