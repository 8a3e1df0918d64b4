"""Where servers of ours may listen."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from grpc import aio

from fleet_protos.errors import ConfigError, Conflict
from fleet_transport.sockets import bind_server, listen_address


def path_of(address: str) -> Path:
    return Path(address.removeprefix("unix:"))


def test_the_socket_of_a_state_folder_lies_in_it(tmp_path: Path) -> None:
    assert listen_address(tmp_path, "agent") == f"unix:{tmp_path}/agent.sock"


def test_a_folder_too_deep_for_the_kernel_gets_a_short_socket_that_is_always_the_same(
    tmp_path: Path,
) -> None:
    deep = tmp_path / ("d" * 120)
    first, other = listen_address(deep, "agent"), listen_address(deep, "controller")
    assert first == listen_address(deep, "agent") != other
    assert len(os.fsencode(path_of(first))) <= 100


async def test_only_its_owner_may_connect(tmp_path: Path) -> None:
    server = aio.server()
    address = bind_server(server, listen_address(tmp_path / "new", "agent"))
    assert stat.S_IMODE(os.stat(path_of(address)).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "new").st_mode) == 0o700
    await server.stop(None)


async def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)
    with pytest.raises(ConfigError, match="other users can write to"):
        bind_server(aio.server(), listen_address(tmp_path, "agent"))


async def test_a_stale_socket_is_replaced_and_a_live_one_is_not(tmp_path: Path) -> None:
    address = listen_address(tmp_path, "agent")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path_of(address)))
    server = aio.server()
    assert bind_server(server, address) == address
    await server.start()
    with pytest.raises(Conflict, match="already listens"):
        bind_server(aio.server(), address)
    await server.stop(None)


async def test_loopback_tcp_tells_its_real_port() -> None:
    server = aio.server()
    host, _, port = bind_server(server, "127.0.0.1:0").rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    await server.start()  # one that was never started keeps its port
    await server.stop(None)


@pytest.mark.parametrize(
    "address", ["0.0.0.0:5000", "10.0.0.1:5000", "[::]:5000", "gpu1:5000", "127.0.0.1", ""]
)
async def test_nothing_listens_on_a_network_without_tls(address: str) -> None:
    with pytest.raises(ConfigError, match="without TLS"):
        bind_server(aio.server(), address)
