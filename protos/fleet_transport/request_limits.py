"""Owns the gate before the verbs of a gRPC server: a message that is too large or is none is
refused and told in the log. Knows no verb.

gRPC refuses such a message too, and says nothing about it where the server's owner would see it:
what it takes at all is therefore more.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from fleet_transport.caller import describe_peer

log = logging.getLogger(__name__)

GRPC_MAX_BYTES = 64 << 20  # what gRPC takes in: above it the caller is told, and nobody else
if TYPE_CHECKING:  # at run time these have no arguments
    Handler = grpc.RpcMethodHandler[Any, Any]
    Interceptor = aio.ServerInterceptor[Any, Any]
else:
    Interceptor = aio.ServerInterceptor


@dataclass(frozen=True, slots=True)
class _InvalidRequest:
    """In place of a request."""

    reason: str


class RequestLimit(Interceptor):
    """Looks at each request before a verb does."""

    def __init__(self, largest_bytes: int) -> None:
        self._largest_bytes = largest_bytes

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The verb's handler with the gate before it."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None or handler.request_streaming:
            return handler
        read = _limited_reader(handler.request_deserializer, self._largest_bytes)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _checked_stream(handler, handler_call_details.method),
                read,
                handler.response_serializer,
            )
        return grpc.unary_unary_rpc_method_handler(
            _checked_unary(handler, handler_call_details.method), read, handler.response_serializer
        )


def _limited_reader(read: Callable[[bytes], Any], largest_bytes: int) -> Callable[[bytes], Any]:
    def gated(content: bytes) -> Any:
        if len(content) > largest_bytes:
            return _InvalidRequest(f"a message of {len(content)} bytes, more than {largest_bytes}")
        try:
            return read(content)
        except (DecodeError, ValueError, RecursionError) as error:
            return _InvalidRequest(f"a message of {len(content)} bytes that is none: {error}")

    return gated


async def _refuse(
    method: str, request: _InvalidRequest, context: aio.ServicerContext[Any, Any]
) -> None:
    log.warning("%s of %s refused: %s", method, describe_peer(context.peer()), request.reason)
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.reason[:500])


def _checked_unary(handler: Handler, method: str) -> Any:
    return _checked(handler.unary_unary, method)


def _checked(verb: Any, method: str) -> Any:
    async def gated(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        if isinstance(request, _InvalidRequest):
            await _refuse(method, request, context)
        return await verb(request, context)

    return gated


def _checked_stream(handler: Handler, method: str) -> Any:
    verb: Any = handler.unary_stream
    if not inspect.isasyncgenfunction(verb):  # it writes its answers itself
        return _checked(verb, method)

    async def gated(request: Any, context: aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        if isinstance(request, _InvalidRequest):
            await _refuse(method, request, context)
        async for answer in verb(request, context):
            yield answer

    return gated
