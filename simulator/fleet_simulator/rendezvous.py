"""Connects the nodes of one simulated server, so that all nodes start together and each notices
when another node ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

_RETRY_S = 0.05
_GO = b"all nodes are connected\n"


class Rendezvous:
    """Holds the connections of one node to other nodes of the same server.

    Rank 0 listens at the rendezvous address. All other ranks connect to rank 0.
    """

    def __init__(self, args: Mapping[str, Any]) -> None:
        self._nodes, self._rank = int(args["nnodes"]), int(args["node_rank"])
        host, _, port = str(args["dist_init_addr"] or "127.0.0.1:0").rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._joined = asyncio.Event()

    async def wait_complete(self) -> None:
        """Wait until all nodes are connected.

        Raises OSError if rank 0 cannot listen. Raises EOFError if rank 0 ended before all nodes
        were connected.
        """
        if self._rank:
            reader, writer = await self._connect()
            self._connections.append((reader, writer))
            if await reader.readline() != _GO:
                raise EOFError("rank 0 closed the connection before all nodes were connected")
            return
        listener = await asyncio.start_server(self._join, self._host, self._port)
        while len(self._connections) < self._nodes - 1:
            await self._joined.wait()
            self._joined.clear()
        listener.close()
        for _, writer in self._connections:
            writer.write(_GO)

    async def wait_lost(self) -> str:
        """Wait until a connected node ends. Return the address of that node as `HOST<PORT>`."""
        waiting = {
            asyncio.ensure_future(reader.read(1)): writer for reader, writer in self._connections
        }
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for read in waiting:
                read.cancel()
        host, port = waiting[done.pop()].get_extra_info("peername")[:2]
        return f"{host}<{port}>"

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.append((reader, writer))
        self._joined.set()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            try:
                return await asyncio.open_connection(self._host, self._port)
            except OSError:
                await asyncio.sleep(_RETRY_S)
