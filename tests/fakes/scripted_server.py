"""Owns an HTTP server that answers exactly the bytes of a script, breaks off where it says, and
waits where it says. Knows no API.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

RESET = "reset"  # drop the connection so that the peer sees ECONNRESET
CLOSE = "close"  # end the connection in order
SILENCE = "silence"  # say no more and keep the connection

Script = Sequence[bytes | str]


@dataclass(slots=True)
class ScriptedServer:
    """Answers the n-th request with the n-th script, the last one again for all that follow."""

    scripts: Sequence[Script]
    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.connections += 1
        try:
            while (request := await _read_request(reader)) and await self._answer(request, writer):
                pass
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self.tasks.discard(task)

    async def _answer(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        script = self.scripts[min(len(self.requests), len(self.scripts) - 1)]
        self.requests.append(request)
        for step in script:
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
                await asyncio.sleep(0)  # each step is a packet of its own
            elif step == SILENCE:
                await asyncio.Event().wait()
            else:
                if step == RESET:
                    _reset_on_close(writer)
                return False
        return True


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    length = next(
        (
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        ),
        0,
    )
    return head + await reader.readexactly(length)


def _reset_on_close(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@asynccontextmanager
async def scripted_server(*scripts: Script) -> AsyncIterator[ScriptedServer]:
    """A server of these scripts on a free port of 127.0.0.1."""
    scripted = ScriptedServer(scripts)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.port = server.sockets[0].getsockname()[1]
    try:
        yield scripted
    finally:
        server.close()
        for task in tuple(scripted.tasks):
            task.cancel()
        if scripted.tasks:
            await asyncio.wait(scripted.tasks)
        await server.wait_closed()


@contextmanager
def served(*scripts: Script) -> Iterator[ScriptedServer]:
    """The same in a thread of its own, for a test whose own thread is taken, as a shard takes it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = scripted_server(*scripts)
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
