"""What anybody may send to the controller's socket: refused, told in its log, and the controller
goes on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc import aio

from fleet_controller.app.bootstrap import RunningController, start_controller
from fleet_protos.v1 import controller_pb2 as pb
from fleet_protos.v1 import controller_pb2_grpc

SERVICE = "/fleet_protos.v1.ControllerService/"
METHODS = pb.DESCRIPTOR.services_by_name["ControllerService"].methods
STREAMS = {method.name for method in METHODS if method.server_streaming}
NAMES = [method.name for method in METHODS]
NEVER = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}  # what no message may lead to
TEXTS = [
    "../../x",
    "$(touch x)",
    "a\0b",
    "\x1b[2J",
    "x" * 100_000,
    "",
    "%",
    "_",
    "' OR 1=1 --",
    "\u202ex",
    "😀",
    "-x",
]


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[RunningController]:
    """A controller that follows nobody."""
    async with start_controller(tmp_path, [], first_contact_s=0.1) as here:
        yield here


@contextlib.asynccontextmanager
async def line(here: RunningController) -> AsyncIterator[aio.Channel]:
    async with aio.insecure_channel(
        here.address, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        yield channel


async def call(channel: aio.Channel, method: str, content: bytes) -> grpc.StatusCode | None:
    """The status of a call with these bytes; None when it was answered."""
    try:
        if method in STREAMS:
            async for _ in channel.unary_stream(SERVICE + method)(content, timeout=1):
                break
        else:
            await channel.unary_unary(SERVICE + method)(content, timeout=20)
    except aio.AioRpcError as error:
        return error.code()
    return None


async def answers(channel: aio.Channel) -> bool:
    return not (
        await controller_pb2_grpc.ControllerServiceStub(channel).ListJobs(
            pb.ListJobsRequest(), timeout=20
        )
    ).jobs


async def test_a_message_that_is_none_or_too_large_is_refused_and_told(
    here: RunningController, caplog: pytest.LogCaptureFixture
) -> None:
    async with line(here) as channel:
        with caplog.at_level(logging.WARNING):
            for method in NAMES:
                for content in (b"\xff" * 40, b"\x0a\xff\xff\xff\x7f", b"\x0a" + bytes(5 << 20)):
                    assert await call(channel, method, content) is grpc.StatusCode.INVALID_ARGUMENT
        assert all(f"{SERVICE}{method} from" in caplog.text for method in NAMES)
        assert (
            await call(channel, "SubmitJob", b"\x0a" + bytes(80 << 20))
            is grpc.StatusCode.RESOURCE_EXHAUSTED
        )
        assert await answers(channel)


@pytest.mark.parametrize("method", NAMES)
async def test_no_text_of_a_request_leads_to_more_than_a_refusal(
    here: RunningController, method: str, tmp_path: Path
) -> None:
    before = set(os.listdir(tmp_path))
    kind = METHODS[NAMES.index(method)].input_type
    fields = [field for field in kind.fields if field.type == field.TYPE_STRING]
    async with line(here) as channel:
        for field in fields:
            for text in TEXTS:
                request = getattr(pb, kind.name)()
                if field.is_repeated:
                    getattr(request, field.name).append(text)
                else:
                    setattr(request, field.name, text)
                assert await call(channel, method, request.SerializeToString()) not in NEVER, (
                    field.name,
                    text,
                )
        assert await answers(channel)
    assert set(os.listdir(tmp_path)) == before


async def test_any_bytes_at_any_verb_leave_the_controller_working(here: RunningController) -> None:
    draw = random.Random(1)
    async with line(here) as channel:
        for _ in range(300):
            method = draw.choice([name for name in NAMES if name not in STREAMS])
            content = draw.randbytes(draw.randrange(60))
            assert await call(channel, method, content) not in {
                *NEVER,
                grpc.StatusCode.UNAVAILABLE,
            }, (method, content)
        assert await answers(channel)


@pytest.mark.parametrize(
    "content",
    [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 60, bytes(70_000)],
)
async def test_bytes_that_are_no_call_end_that_connection_alone(
    here: RunningController, content: bytes
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.connect(here.address.removeprefix("unix:"))
        raw.settimeout(1)
        with contextlib.suppress(OSError):
            raw.sendall(content)
    async with line(here) as channel:
        assert await answers(channel)
