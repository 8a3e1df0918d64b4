"""Relays connections of load hosts to a server that listens on loopback. Load hosts connect with
mutual TLS; the relay connects to the server with plain TCP.

Protocol: the first line on stdout is the relay's port. For each line on stdin, the relay writes a
JSON list of numbers in nanoseconds: how late its event loop woke up, for each sample since the last
list. The relay ends when stdin is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, cast

import uvloop

from fleet_agent.load.workers.loop_lag import LoopLag

_FULL_BYTES: Final = 1 << 20  # unsent bytes of one side at which reading from the other pauses
_BACKLOG: Final = 4096


class _Side(asyncio.Protocol):
    """Handles one side of a relayed connection. Everything that this side reads is written to the
    other side.
    """

    def __init__(self, other: _Side | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self.other = other
        self._early: list[bytes] = []  # read before the other end was connected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the new connection."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_FULL_BYTES)

    def data_received(self, data: bytes) -> None:
        """Write the received bytes to the other side. This is the hot path."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)
        else:
            self._early.append(data)

    def eof_received(self) -> bool:
        """Close the connection, because HTTP does not use half-closed connections."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other side once it has sent what this side read."""
        self.transport = None
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def pause_writing(self) -> None:
        """Stop reading from the other side while this side cannot send."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read from the other side again."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def take_early(self) -> Iterator[bytes]:
        """Yield what was read before the other side was connected. A second call yields nothing."""
        early, self._early = self._early, []
        yield from early


class _Outer(_Side):
    """Handles the connection from a load host, after its TLS handshake."""

    def __init__(self, port: int, tasks: asyncio.TaskGroup) -> None:
        super().__init__()
        self._port = port
        self._tasks = tasks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the new connection, and connect to the server."""
        super().connection_made(transport)
        self._tasks.create_task(self._connect_inner())

    async def _connect_inner(self) -> None:
        try:
            _, inner = await asyncio.get_running_loop().create_connection(
                lambda: _Side(self), "127.0.0.1", self._port
            )
        except OSError:  # the server is gone: close the outer side too
            if self.transport is not None:
                self.transport.abort()
            return
        if self.transport is None:
            cast(asyncio.Transport, inner.transport).abort()
            return
        for data in self.take_early():
            cast(asyncio.Transport, inner.transport).write(data)
        self.other = inner


def server_context(certificate: str, key: str, authority: str) -> ssl.SSLContext:
    """Return a TLS context that admits only clients with a certificate from the cluster's own
    authority. Raises OSError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def _serve(options: argparse.Namespace) -> None:
    context = server_context(options.certificate, options.key, options.authority)
    lag, orders = LoopLag(), asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with asyncio.TaskGroup() as tasks:
        server = await loop.create_server(
            lambda: _Outer(options.port, tasks),
            options.address,
            0,
            ssl=context,
            backlog=_BACKLOG,
            ssl_handshake_timeout=10.0,
        )
        _write_line(str(server.sockets[0].getsockname()[1]))
        sampling = tasks.create_task(lag.sample())
        while await orders.readline():
            _write_line(json.dumps(lag.drain_samples()))
        server.close()
        sampling.cancel()


def _write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the relay.

    python -m fleet_agent.load.cluster.relay --address IP --port PORT
        --certificate FILE --key FILE --authority FILE
    """
    parser = argparse.ArgumentParser(
        description="Lets the load hosts of one trial reach its server. "
        "Started by the load process."
    )
    parser.add_argument(
        "--address", required=True, help="the address to listen on; the port is any free one"
    )
    parser.add_argument(
        "--port", required=True, type=int, help="the port at which the server listens on 127.0.0.1"
    )
    for name in ("certificate", "key", "authority"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    with suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
