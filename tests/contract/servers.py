"""Owns what a contract test knows of the server before it: never how it was started."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is up. `model_path` and `speculation` are what it was started with."""

    url: str
    model_path: str
    speculation: bool
    simulated: bool


def assert_health_order(statuses: list[int]) -> None:
    """The different statuses of /health from launch on: refused (0), then 503, then 200; 503 must
    be there, nothing comes back.
    """
    assert [status for status in statuses if status] == [503, 200], statuses
