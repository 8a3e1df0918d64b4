"""Rejects requests to a gRPC server that are too large or cannot be parsed, and logs them.

gRPC rejects such messages too, but without a line in the server's log. The limit of gRPC is
therefore set higher than the limit here.
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

GRPC_MAX_BYTES = 64 << 20  # gRPC's own limit; above it only the caller learns of the rejection
if TYPE_CHECKING:  # at run time these have no arguments
    Handler = grpc.RpcMethodHandler[Any, Any]
    Interceptor = aio.ServerInterceptor[Any, Any]
else:
    Interceptor = aio.ServerInterceptor


@dataclass(frozen=True, slots=True)
class _InvalidRequest:
    """Takes the place of a request that was rejected. `reason` says why."""

    reason: str


class RequestLimit(Interceptor):
    """Checks each request before its RPC method runs. Rejects requests above `largest_bytes` and
    requests that cannot be parsed.
    """

    def __init__(self, largest_bytes: int) -> None:
        self._largest_bytes = largest_bytes

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the method's handler with the check in front of it."""
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
    def read_checked(content: bytes) -> Any:
        size = len(content)
        if size > largest_bytes:
            return _InvalidRequest(
                f"a message of {size} bytes is larger than the limit of {largest_bytes} bytes"
            )
        try:
            return read(content)
        except (DecodeError, ValueError, RecursionError) as error:
            return _InvalidRequest(f"a message of {size} bytes cannot be parsed: {error}")

    return read_checked


async def _refuse(
    method: str, request: _InvalidRequest, context: aio.ServicerContext[Any, Any]
) -> None:
    log.warning("refused %s from %s: %s", method, describe_peer(context.peer()), request.reason)
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.reason[:500])


def _checked_unary(handler: Handler, method: str) -> Any:
    return _checked(handler.unary_unary, method)


def _checked(verb: Any, method: str) -> Any:
    async def checked(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        if isinstance(request, _InvalidRequest):
            await _refuse(method, request, context)
        return await verb(request, context)

    return checked


def _checked_stream(handler: Handler, method: str) -> Any:
    verb: Any = handler.unary_stream
    if not inspect.isasyncgenfunction(verb):  # the method writes its responses itself
        return _checked(verb, method)

    async def checked(request: Any, context: aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        if isinstance(request, _InvalidRequest):
            await _refuse(method, request, context)
        async for answer in verb(request, context):
            yield answer

    return checked
