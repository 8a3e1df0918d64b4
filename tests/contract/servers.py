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
