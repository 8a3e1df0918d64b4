"""Empties a server's prefix cache before a run, and measures how many tokens of the chat template
the server caches.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from fleet_agent.load.client.request_body import PATHS, LoadTarget, completion_body, http_request
from fleet_agent.load.client.response_decoder import decode_response
from fleet_agent.load.client.timed_http_client import Endpoint

# for half a minute: an overloaded server first finishes what a run left in its queue
_TRIES: Final = 300
_PAUSE_S: Final = 0.1
_TIMEOUT_S: Final = 10.0


async def flush_prefix_cache(target: LoadTarget, tries: int = _TRIES) -> bool:
    """Empty the prefix cache of an SGLang server. Return whether this succeeded.

    A server refuses while a request runs, so at most `tries` attempts are made, 0.1 s apart.
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
    """Return the number of prompt tokens that any two requests share, which are those of the chat
    template.

    Two requests are sent; the result is what the server reports as cached in the second. Return
    None if the server does not report cached tokens or a request failed.
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
