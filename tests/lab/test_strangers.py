"""Promises about strangers on the network and on a host that open connections and say nothing."""

from __future__ import annotations

import os
import socket
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from tests.lab.fleet import PORT, LabFleet
from tests.lab.hosts import wait_until

STRANGERS = 600
METRICS_PORT = 9108
SETTINGS = f'simulated_gpus = 8\nmetrics = "0.0.0.0:{METRICS_PORT}"\n'
HALF_REQUESTS = f"""
import socket, time
open_ = [socket.create_connection(("127.0.0.1", {METRICS_PORT})) for _ in range({STRANGERS})]
for each in open_:
    each.sendall(b"GET /metrics HTTP/1.1\\r\\nX: ")
print("done", flush=True)
"""


def test_neither_silent_connections_nor_half_requests_keep_a_controller_or_a_scraper_out(
    lab_fleet: LabFleet,
) -> None:
    """The strangers have the controller's own address, and user bench of the host."""
    host = lab_fleet.lab.host("gpu01", with_venv=True)
    [agent] = lab_fleet.add([host], SETTINGS)
    assert agent.started is not None
    files = Path(f"/proc/{agent.started.outer_pid}/fd")
    with ExitStack() as stack:
        for _ in range(STRANGERS):
            stack.enter_context(socket.create_connection((host.address, PORT), 10))
        lab_fleet.controller.start()
        lab_fleet.await_connected()
        lab_fleet.controller.kill()
        lab_fleet.controller.start()
        lab_fleet.await_connected()
        assert len(os.listdir(files)) < 256
    assert host.run(["python3", "-c", HALF_REQUESTS], user="bench").stdout == "done\n"
    url = f"http://{host.address}:{METRICS_PORT}/metrics"
    with urllib.request.urlopen(url, timeout=5) as answer:
        assert b"fleet_trials" in answer.read()
    assert len(os.listdir(files)) < 256
    wait_until(lambda: "newer connections have come" in agent.log(), 10.0, "the agent says why")
    assert agent.alive
