"""Owns the start and the end of one simulated server for a test: a real process on a free port, its
log in a file.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_LIMIT_S = 20.0
TUNED = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}


@dataclass(frozen=True, slots=True)
class Running:
    """A server that listens."""

    url: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        """Its log so far."""
        return self.log.read_text()

    def health(self) -> int:
        """Status of /health; 0 while nothing answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    def wait_healthy(self) -> list[int]:
        """The different statuses seen on the way to 200. Raises AssertionError when it ends or
        takes too long.
        """
        seen: list[int] = []
        deadline = time.monotonic() + START_LIMIT_S
        while not seen or seen[-1] != 200:
            assert time.monotonic() < deadline and self.process.poll() is None, self.text()
            status = self.health()
            if seen[-1:] != [status]:
                seen.append(status)
            time.sleep(0.005)
        return seen


def speculative(steps: int) -> list[str]:
    """The command line of EAGLE-3 with a chain of `steps` drafts."""
    return [
        "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "demo/draft", "--speculative-num-steps", str(steps),
        "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(steps + 1),
    ]  # fmt: skip


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def simulated_server(
    folder: Path,
    *args: str,
    knobs: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    healthy: bool = True,
    port: int = 0,
) -> Iterator[Running]:
    """A simulated server of model `demo/model` with extra `args`; killed at the end unless it is
    already gone.
    """
    port = port or free_port()
    log = folder / f"simulated-{port}.log"
    argv = [
        sys.executable,
        "-m",
        "fleet_simulator.server",
        "--model-path",
        "demo/model",
        "--port",
        str(port),
        *args,
    ]
    base = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*argv, "--simulation", json.dumps(dict(knobs or {}))],
            env={**base, **(env or {})},
            stdout=output,
            stderr=output,
        )
    running = Running(f"http://127.0.0.1:{port}", port, process, log)
    try:
        if healthy:
            running.wait_healthy()
        yield running
    finally:
        process.kill()
        process.wait()
