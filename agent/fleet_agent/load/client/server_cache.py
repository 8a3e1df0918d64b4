"""Owns the prefix cache of a server under test: flushes it before a run, and learns what the chat
template keeps in it.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from fleet_agent.load.client.http_client import Endpoint
from fleet_agent.load.client.request_body import PATHS, LoadTarget, completion_body, http_request
from fleet_agent.load.client.response_decoder import decode_response

_TRIES: Final = (
    300  # half a minute: what a run left in the queue of an overloaded server is worked off first
)
_PAUSE_S: Final = 0.1
_TIMEOUT_S: Final = 10.0


async def flush_prefix_cache(target: LoadTarget, tries: int = _TRIES) -> bool:
    """Empty the prefix cache of an SGLang server. False: it would not (it refuses while a request
    runs; asked again for half a minute).
    """
    endpoint = Endpoint(target.url)
    try:
        for _ in range(tries):
            exchange = await endpoint.exchange(
                http_request(target, "/flush_cache", None), _TIMEOUT_S
            )
            if b" 200 " in exchange.reads.data[:16]:
                return True
            if exchange.failure:
                return False
            await asyncio.sleep(_PAUSE_S)
    finally:
        endpoint.close()
    return False


async def probe_template_tokens(target: LoadTarget, api: str, timeout_s: float) -> int | None:
    """Prompt tokens that any two requests share: those of the chat template, as the second of two
    probes finds them cached.

    None when the server does not report cached tokens or a probe failed.
    """
    endpoint = Endpoint(target.url)
    found = None
    try:
        for _ in range(2):
            content = completion_body(target, api, f"{secrets.token_hex(6)} Say one word.", 1)
            exchange = await endpoint.exchange(http_request(target, PATHS[api], content), timeout_s)
            response = decode_response(
                exchange.reads, closed=exchange.closed, failure=exchange.failure
            )
            found = response.cached_tokens
    finally:
        endpoint.close()
    return found
