"""Forwards local Unix sockets through SSH to the ports of agents. The TLS inside the tunnel is not
decrypted.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import paramiko

from fleet_controller.core.inventory import FleetHost
from fleet_controller.ssh.keyring import Keyring
from fleet_controller.ssh.ssh_connection import SshConnection
from fleet_protos.errors import FleetError

log = logging.getLogger(__name__)

AGENT_LOOPBACK = "127.0.0.1"  # the address, on its host, of an agent that is reached through SSH
_CHUNK_BYTES = 1 << 16


class Forwarder:
    """Forwards the connections of one Unix socket to a port of a host.

    `connect` returns an open SSH connection to the host. It makes a new connection if the last one
    has broken.
    """

    def __init__(self, path: Path, connect: Callable[[], SshConnection], port: int) -> None:
        self.address = f"unix:{path}"
        self._connect = connect
        self._port = port
        self._closing = threading.Event()
        self._open: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))  # its folder is ours, with mode 0700
        path.chmod(0o600)
        self._listener.listen(16)
        self._threads = [threading.Thread(target=self._accept, daemon=True, name="tunnel")]
        self._threads[0].start()

    def close(self) -> None:
        """Close the socket and all connections."""
        self._closing.set()
        for each in (self._listener, *tuple(self._open)):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in tuple(self._threads):
            thread.join(10.0)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._start(self._forward, client)

    def _start(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True, name="tunnel")
        self._threads.append(thread)
        thread.start()
        return thread

    def _forward(self, client: socket.socket) -> None:
        """Forward one connection until either side ends it."""
        self._open.add(client)
        try:
            channel = self._connect().open_channel(AGENT_LOOPBACK, self._port)
        except FleetError as error:
            log.info("tunnel: %s", error.message)  # the client sees a closed connection
        else:
            reader = self._start(_copy_to_socket, channel, client)
            _copy_to_channel(client, channel)
            reader.join()
            channel.close()
        finally:
            self._open.discard(client)
            client.close()


def _copy_to_channel(client: socket.socket, channel: paramiko.Channel) -> None:
    with suppress(OSError, EOFError):
        while chunk := client.recv(_CHUNK_BYTES):
            channel.sendall(chunk)
    with suppress(OSError, EOFError):
        channel.close()


def _copy_to_socket(channel: paramiko.Channel, client: socket.socket) -> None:
    with suppress(OSError, EOFError):
        while chunk := channel.recv(_CHUNK_BYTES):
            client.sendall(chunk)
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


class _HostTunnel:
    """The local socket and the SSH connection to one host. The connection is made again when it
    breaks.
    """

    def __init__(self, host: FleetHost, keyring: Keyring, folder: Path) -> None:
        self._host = host
        self._keyring = keyring
        self._lock = threading.Lock()
        self._connection: SshConnection | None = None
        self.forwarder = Forwarder(folder / f"{host.name}.sock", self.open_connection, host.port)

    def open_connection(self) -> SshConnection:
        """Return an open SSH connection, which is new if the last one has ended. Raises FleetError
        if SSH fails.
        """
        with self._lock:
            if self._connection is not None and not self._connection.is_open:
                self._connection.close()
                self._connection = None
            if self._connection is None:
                self._connection = SshConnection.open(self._host.ssh, self._keyring)
            return self._connection

    def close(self) -> None:
        """Close the SSH connection first, which ends all forwarded connections. Then close the
        socket.
        """
        with self._lock:
            if self._connection is not None:
                self._connection.close()
        self.forwarder.close()


class Tunnels:
    """The tunnels to all hosts that are reached through SSH, as an async context manager."""

    def __init__(self) -> None:
        self._keyring = Keyring()
        self._tunnels: dict[str, _HostTunnel] = {}
        self._folder: Path | None = None

    async def __aenter__(self) -> Tunnels:
        self._folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="benchfleet-"))  # 0700
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.gather(
            *(asyncio.to_thread(tunnel.close) for tunnel in self._tunnels.values())
        )
        self._keyring.close()
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def open_tunnel(self, host: FleetHost) -> str:
        """Open the tunnel to the agent of `host`. Return the tunnel's local address, `unix:PATH`.

        Raises FleetError if SSH fails.
        """
        assert self._folder is not None
        tunnel = self._tunnels.get(host.name)
        if tunnel is None:
            tunnel = self._tunnels[host.name] = _HostTunnel(host, self._keyring, self._folder)
        await asyncio.to_thread(tunnel.open_connection)
        return tunnel.forwarder.address
