"""Owns plain blocking HTTP for the contract tests, on the standard library alone, so that no client
of ours is trusted.
"""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Its body as JSON."""
        return json.loads(self.body)

    def events(self) -> list[dict[str, Any]]:
        """The JSON of each server-sent event, without the end mark, which must be the last."""
        lines = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]


class Client:
    """One request, one connection."""

    def __init__(self, url: str, timeout_s: float = 120.0) -> None:
        self._host = urlsplit(url).netloc
        self._timeout_s = timeout_s

    def get(self, path: str) -> Answer:
        """GET."""
        return self.send("GET", path)

    def get_json(self, path: str) -> Any:
        """GET that must answer 200."""
        answer = self.get(path)
        assert answer.status == 200, answer
        return answer.json()

    def post(self, path: str, body: Any) -> Answer:
        """POST of JSON, or of bytes as they are."""
        return self.send(
            "POST", path, body if isinstance(body, bytes) else json.dumps(body).encode()
        )

    def send(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """Any request. Raises OSError or http.client.HTTPException when no answer came."""
        connection = http.client.HTTPConnection(self._host, timeout=self._timeout_s)
        try:
            return exchange(connection, method, path, body)
        finally:
            connection.close()


def exchange(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None
) -> Answer:
    """One request on an open connection."""
    connection.request(method, path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    return Answer(
        answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    )
