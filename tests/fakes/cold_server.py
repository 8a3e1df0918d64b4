"""Owns a server of which the first answers of a length are slow, as of one that still compiles:
everything else about them is alike.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.fakes import streams


@dataclass(frozen=True, slots=True)
class Cold:
    """How long answers of `tokens` take: the first `answers` of them `cold_s`, all others `warm_s`.
    Shorter answers come at once.
    """

    tokens: int = 40
    answers: int = 2
    cold_s: float = 0.16
    warm_s: float = 0.08


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._answer(
            json.dumps({"object": "list", "data": [{"id": "m", "object": "model"}]}).encode()
        )

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = asked["max_tokens"]
        if not asked.get("stream"):
            self._answer(json.dumps({"choices": [{"message": {"content": "yes"}}]}).encode())
            return
        self.server.take(tokens)
        self.wfile.write(streams.chat([" a"] * tokens))

    def _answer(self, content: bytes) -> None:
        self.wfile.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (len(content), content)
        )
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, cold: Cold) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._cold = cold
        self._left = cold.answers

    def take(self, tokens: int) -> None:
        """As long as an answer of so many tokens takes; at one user a time."""
        if tokens < self._cold.tokens:
            return
        time.sleep(self._cold.cold_s if self._left > 0 else self._cold.warm_s)
        self._left -= 1


@contextmanager
def cold_server(cold: Cold) -> Iterator[str]:
    """Its address while inside."""
    server = _Server(cold)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
