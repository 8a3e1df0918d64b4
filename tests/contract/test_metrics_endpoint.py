"""The Prometheus endpoint over real sockets: what it answers, and what strangers cannot take."""

from __future__ import annotations

import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from prometheus_client import CollectorRegistry, Gauge

from fleet_protos.errors import Conflict
from fleet_transport.metrics_endpoint import serve_metrics
from tests.fakes.free_port import free_port

STRANGERS = 600
SILENT_S = 30.0  # no connection may stay open for so long
HALF = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: "


@pytest.fixture
def port() -> Iterator[int]:
    registry = CollectorRegistry()
    Gauge("benchfleet_test", "A value", registry=registry).set(3)
    port = free_port()
    stop = serve_metrics(registry, port)
    yield port
    stop()


def scrape(port: int, path: str = "/metrics", accept: str = "") -> tuple[str, str]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", headers={"Accept": accept} if accept else {}
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def ended(connection: socket.socket) -> bool:
    """Whether the other side has closed it; waits until it has, or for `SILENT_S`."""
    connection.settimeout(SILENT_S)
    try:
        return connection.recv(1 << 16) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [("", "text/plain"), ("application/openmetrics-text;version=1.0.0", "application/openmetrics")],
)
def test_it_answers_in_the_format_that_the_scraper_takes(
    port: int, accept: str, content_type: str
) -> None:
    shown, text = scrape(port, accept=accept)
    assert shown.startswith(content_type)
    assert "benchfleet_test 3.0" in text


def test_another_path_and_another_method_are_refused(port: int) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scrape(port, "/secrets")
    posted = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", b"x")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(posted, timeout=5)


def test_a_port_that_is_taken_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Conflict, match=f"cannot serve metrics on 127.0.0.1:{port}"):
            serve_metrics(CollectorRegistry(), port)


def test_hundreds_of_half_requests_take_neither_threads_nor_files_nor_the_scrapers_turn(
    port: int,
) -> None:
    files = len(os.listdir("/proc/self/fd"))
    with ExitStack() as stack:
        for _ in range(STRANGERS):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port), 5))
            stranger.sendall(HALF)
        assert "benchfleet_test 3.0" in scrape(port)[1]
        assert len([each for each in threading.enumerate() if each.name == "metrics"]) == 1
        assert len(os.listdir("/proc/self/fd")) - files - STRANGERS <= 70
    assert "benchfleet_test 3.0" in scrape(port)[1]


def test_who_stays_silent_or_sends_drop_by_drop_or_too_much_is_cut_off(port: int) -> None:
    with (
        socket.create_connection(("127.0.0.1", port)) as silent,
        socket.create_connection(("127.0.0.1", port)) as slow,
        socket.create_connection(("127.0.0.1", port)) as much,
    ):
        much.sendall(HALF + b"x" * (1 << 15))
        assert ended(much)
        slow.sendall(HALF)
        began_s = time.monotonic()
        dripping = threading.Thread(target=drip, args=(slow,))
        dripping.start()
        assert ended(silent)
        assert time.monotonic() - began_s < SILENT_S
        dripping.join(SILENT_S)
        assert not dripping.is_alive()


def drip(connection: socket.socket) -> None:
    """Send a byte every half second until the connection is closed."""
    connection.settimeout(0.5)
    while True:
        try:
            connection.sendall(b"x")
            if connection.recv(1) == b"":
                return
        except TimeoutError:
            continue
        except OSError:
            return
