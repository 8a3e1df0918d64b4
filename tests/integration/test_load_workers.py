"""How tests of faults find the load worker in use: by its name and its connection. A process that
does not match is left alone.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fleet_agent.host.processes import read_stat
from tests.fakes.load_workers import IDLE, SENDING, is_idle, is_sending, kill_while, title

CONNECTED = "import socket, sys, time; link = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print(flush=True); time.sleep(60)"


@contextmanager
def worker(name: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process of that name with a connection to a port."""
    process = subprocess.Popen(
        [name, "-S", "-c", CONNECTED, str(port)], executable=sys.executable, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_worker_is_sending_while_it_is_connected_to_the_server_and_is_killed_then(
    port: int,
) -> None:
    with worker(SENDING, port) as process:
        before_ns = time.time_ns()
        assert (
            before_ns
            <= kill_while(process.pid, lambda pid: is_sending(pid, {port}))
            <= time.time_ns()
        )
        assert process.wait(5) == -9
        assert (title(process.pid), kill_while(process.pid, lambda _: True)) == ("", 0)


@pytest.mark.parametrize(
    ("name", "other", "holds"),
    [
        (SENDING, 1, is_sending),
        ("ray::DashboardAgent", 0, is_sending),
        (IDLE, 0, is_sending),
        (SENDING, 0, lambda pid, _: is_idle(pid)),
    ],
)
def test_who_is_no_worker_is_idle_or_is_connected_elsewhere_is_left_alone(
    port: int, name: str, other: int, holds: Callable[[int, set[int]], bool]
) -> None:
    with worker(name, port) as process:
        assert kill_while(process.pid, lambda pid: holds(pid, {port + other})) == 0
        assert process.poll() is None


def test_a_process_whose_work_ends_between_two_looks_is_left_running(port: int) -> None:
    with worker(SENDING, port) as process:
        looks = iter([True, False])
        assert kill_while(process.pid, lambda _: next(looks)) == 0
        stat = read_stat(process.pid)
        assert stat is not None and stat.state != "T"
