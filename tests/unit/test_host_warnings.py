"""Promises of what is told when a host cannot go on while a job is followed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from fleet_controller.cli.local_run import report_host_problems
from fleet_controller.core.controller_api import HostStatus

FULL = "the store cannot be used: database or disk is full"


class Looked:
    """A controller whose one host says the next thing at each look; it ends when there is nothing
    more to say.
    """

    def __init__(self, *messages: str) -> None:
        self._messages: Iterator[str] = iter(messages)

    async def hosts(self) -> tuple[HostStatus, ...]:
        message = next(self._messages, None)
        if message is None:
            raise asyncio.CancelledError
        return (HostStatus("box-1", "unix:/s", "connected", 0, 8, "0.1.0", {}, message),)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not asked")


async def told(*messages: str) -> list[str]:
    said: list[str] = []
    with pytest.raises(asyncio.CancelledError):
        await report_host_problems(Looked(*messages), said.append, poll_s=0)
    return said


async def test_what_lasts_is_told_once() -> None:
    assert await told("", FULL, FULL, FULL, FULL) == [
        f"host box-1: {FULL}; the job waits for this host"
    ]


async def test_what_passes_is_not_told() -> None:
    assert await told("connection refused", "", "connection refused", "") == []
