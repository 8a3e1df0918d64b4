"""Owns how the door tells the server behind it who calls: by the name of its own end of the line
between them. Proves nobody.

That end is a Unix socket, so it may have a name of the kernel's abstract kind, and gRPC shows it as
the peer. Only a process of the same user reaches the server's socket at all, so no peer from the
network names itself so.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from urllib.parse import unquote

_NAME_PREFIX = "benchfleet-door-"
_MAX_NAME_BYTES = 107  # of a name, its leading NUL among them (unix(7))
_GRPC_PREFIX = "unix-abstract:"
_calls = itertools.count(1)


def named_socket(peer: str, owner: str) -> socket.socket:
    """An unconnected Unix socket that carries who calls: the address, and whose certificate it
    showed.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.setblocking(False)
    name = f"\0{_NAME_PREFIX}{os.getpid()}-{next(_calls)}/{peer} ({owner})".encode()[
        :_MAX_NAME_BYTES
    ]
    with contextlib.suppress(OSError):  # taken, or no such names here: then the peer is not told
        connection.bind(name)
    return connection


def describe_peer(peer: str) -> str:
    """`10.0.0.5:41234 (user ann)` of a peer as gRPC shows it; that itself when it did not come
    through a door.
    """
    mark, slash, called = unquote(peer.removeprefix(_GRPC_PREFIX)).partition("/")
    return (
        called
        if slash and peer.startswith(_GRPC_PREFIX) and mark.startswith(_NAME_PREFIX)
        else peer or "a peer without an address"
    )
