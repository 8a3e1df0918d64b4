"""Provides the addresses on which gRPC servers of one user listen: a private Unix socket, or
loopback TCP on request. For network addresses, see `tls_gateway`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import socket
import stat
import tempfile
from pathlib import Path

from grpc import aio

from fleet_protos.errors import ConfigError, Conflict

_PATH_LIMIT = 100  # bytes; the kernel takes 107


def listen_address(folder: Path, name: str) -> str:
    """Return `unix:PATH` for the server `name` that keeps its state in `folder`. Server and client
    get the same path. The path is short enough for the kernel.
    """
    path = folder.absolute() / f"{name}.sock"
    if len(os.fsencode(path)) > _PATH_LIMIT:
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        path = _runtime_folder() / f"{digest}.sock"
    return f"unix:{path}"


def _runtime_folder() -> Path:
    named = os.environ.get("XDG_RUNTIME_DIR", "")
    if named and len(os.fsencode(named)) < 60 and Path(named).is_dir():
        return Path(named) / "benchfleet"
    return Path(tempfile.gettempdir()) / f"benchfleet-{os.getuid()}"


def parse_endpoint(text: str) -> tuple[str, int]:
    """Split ADDRESS:PORT into (address, port). An IPv6 address must be in brackets. Raises
    ConfigError for any other text.
    """
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if (
        not bare
        or not port.isdecimal()
        or not 0 <= int(port) < 65536
        or (":" in bare and bare == host)
    ):
        raise ConfigError(
            f"{text!r} is not ADDRESS:PORT", "write an address such as 127.0.0.1:9464 or [::1]:9464"
        )
    return bare, int(port)


def bind_server(server: aio.Server, address: str) -> str:
    """Make `server` listen on `address`. Return the address with its real port. Raises ConfigError
    if the address is not local. Raises Conflict if the address is in use.
    """
    if address.startswith("unix:"):
        return _bind_unix(server, address)
    host, _, port = address.rpartition(":")
    if not _is_loopback(host) or not port.isdigit():
        raise ConfigError(
            f"cannot listen on {address!r}: without TLS, only unix:PATH and 127.0.0.1:PORT work",
            "to listen on a network address, create certificates with `fleetctl init --fleet` or "
            "`fleetctl deploy`",
        )
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError as error:
        raise Conflict(f"cannot listen on {address}: {error}", "choose another port") from error
    return f"{host}:{bound}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _bind_unix(server: aio.Server, address: str) -> str:
    path = Path(address.removeprefix("unix:"))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    owner = path.parent.stat()
    if owner.st_uid != os.getuid() or stat.S_IMODE(owner.st_mode) & 0o022:
        message = f"other users can write to {path.parent}, so a socket in it is not safe"
        raise ConfigError(message, "choose another folder, or run chmod 700 on this folder")
    _remove_stale(path)
    mask = os.umask(0o177)
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise Conflict(
            f"cannot listen on {path}: {error}",
            "check that the path is short and that the folder is writable",
        ) from error
    finally:
        os.umask(mask)
    return address


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that no longer runs. Raises Conflict if a server still answers
    on the socket.
    """
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
    raise Conflict(
        f"a server already listens on {path}", "stop that server first, or use another state folder"
    )
