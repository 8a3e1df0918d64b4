"""Owns the wait for what sends no news: a look again and again, with an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
_LOOKS, _PAUSE_S = 600, 0.05


async def eventually(look: Callable[[], Awaitable[T]], wanted: Callable[[T], object]) -> T:
    """What is seen as soon as it is as wanted."""
    for _ in range(_LOOKS):
        if wanted(seen := await look()):
            return seen
        await asyncio.sleep(_PAUSE_S)
    raise AssertionError(f"it did not come to that: {seen}")
