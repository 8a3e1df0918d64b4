"""Owns the servers that the contract is checked against: simulated ones always, a real SGLang when
its URL is given.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.contract.http_client import Client
from tests.contract.servers import Server
from tests.fakes.simulated_server import simulated_server, speculative

REAL_URL = os.environ.get("BENCHFLEET_SGLANG_URL", "")


SERVERS = ["simulated", "simulated-eagle3", *(["real"] if REAL_URL else [])]


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    if request.param == "real":
        info = Client(REAL_URL).get_json("/server_info")
        yield Server(
            REAL_URL, info["model_path"], bool(info["speculative_algorithm"]), simulated=False
        )
        return
    args = ["--tp-size", "8", *(speculative(5) if request.param == "simulated-eagle3" else [])]
    with simulated_server(
        tmp_path_factory.mktemp("server"), *args, knobs={"time_scale": 100.0}
    ) as running:
        yield Server(running.url, "demo/model", request.param == "simulated-eagle3", simulated=True)
