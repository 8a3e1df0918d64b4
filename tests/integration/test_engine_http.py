"""Promises of one exchange with a server that is looked at: the answer ends where it says, whether
or not the server closes.
"""

from __future__ import annotations

import asyncio

import pytest

from fleet_agent.load.client import http_fetch

OK = b"HTTP/1.1 200 OK\r\n"


async def answered(answer: bytes, *, closes: bool) -> http_fetch.HttpAnswer:
    """What is had from a server that says that, and then closes or keeps the connection open."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for start in range(0, len(answer), 7):
            writer.write(answer[start : start + 7])
            await asyncio.sleep(0)
        if not closes:
            await over.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with asyncio.timeout(20):
            return await http_fetch.fetch(f"http://127.0.0.1:{port}/base/", "/path")
    finally:
        over.set()
        server.close()


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (OK + b"content-length: 2\r\n\r\n{}", (200, b"{}")),
        (OK + b"content-length: 0\r\n\r\n", (200, b"")),
        (
            OK
            + b"transfer-encoding: chunked\r\n\r\n1;x=y\r\n{\r\n1\r\n}\r\n0\r\ntrailer: 1\r\n\r\n",
            (200, b"{}"),
        ),
        (
            b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 503 No\r\ncontent-length: 3\r\n\r\nnot",
            (503, b"not"),
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
    ],
)
async def test_an_answer_ends_where_it_says(
    answer: bytes, expected: http_fetch.HttpAnswer, *, closes: bool
) -> None:
    assert await answered(answer, closes=closes) == expected


async def test_an_answer_that_does_not_say_where_it_ends_ends_with_the_connection() -> None:
    assert await answered(OK + b"\r\n{}", closes=True) == (200, b"{}")


@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (b"", EOFError, "without sending an answer"),
        (OK, EOFError, "in the middle of an answer"),
        (OK + b"content-length: 3\r\n\r\n{}", EOFError, "in the middle of an answer"),
        (OK + b"transfer-encoding: chunked\r\n\r\n5\r\nab", EOFError, "in the middle of an answer"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", ValueError, "not an HTTP/1.1 answer"),
        (OK + b"content-length: many\r\n\r\n", ValueError, "not a number"),
    ],
)
async def test_what_is_no_whole_answer_is_told(
    answer: bytes, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        await answered(answer, closes=True)


async def test_an_answer_without_end_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_fetch, "LARGEST_HTTP_ANSWER_BYTES", 1000)
    with pytest.raises(EOFError, match="larger than 1000 bytes"):
        await answered(OK + b"\r\n" + 2000 * b"x", closes=False)
