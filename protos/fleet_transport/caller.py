"""Passes the identity of a caller from the TLS gateway to the gRPC server behind the gateway. A
Unix socket connects the two, and the name of the gateway's end carries the identity.

The name is one of the kernel's abstract socket names, which gRPC shows as the peer. Only a process
of the same user reaches the server's socket, so a peer from the network cannot forge the name. The
name identifies the caller in messages; it authenticates nobody.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from urllib.parse import unquote

_NAME_PREFIX = "benchfleet-door-"
_MAX_NAME_BYTES = 107  # of an abstract socket name, with its leading NUL (unix(7))
_GRPC_PREFIX = "unix-abstract:"
_calls = itertools.count(1)


def named_socket(peer: str, owner: str) -> socket.socket:
    """Return an unconnected Unix socket with a name that describes the caller. `peer` is the
    address of the caller, and `owner` is the owner of its certificate.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.setblocking(False)
    name = f"\0{_NAME_PREFIX}{os.getpid()}-{next(_calls)}/{peer} ({owner})".encode()[
        :_MAX_NAME_BYTES
    ]
    # the name is taken, or the system has no abstract names: then messages lack the caller
    with contextlib.suppress(OSError):
        connection.bind(name)
    return connection


def describe_peer(peer: str) -> str:
    """Return the caller behind a peer that gRPC shows, for example `10.0.0.5:41234 (user ann)`.
    Return `peer` itself if the call did not come through a gateway.
    """
    mark, slash, called = unquote(peer.removeprefix(_GRPC_PREFIX)).partition("/")
    return (
        called
        if slash and peer.startswith(_GRPC_PREFIX) and mark.startswith(_NAME_PREFIX)
        else peer or "a peer without an address"
    )
