"""Owns the promises of the adapter of external servers: against a simulated SGLang, and against a
server that is none.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from fleet_agent.core.engine import LaunchPlace
from fleet_agent.engines.external_engine import ExternalEngine
from fleet_protos.errors import ConfigError, ErrorKind, ServerError
from fleet_protos.trial_types import EngineKind, EngineSpec, TrialSpec
from tests.fakes.scripted_server import SILENCE, scripted_server
from tests.fakes.simulated_server import free_port, simulated_server

ENGINE = ExternalEngine()
LOG = Path("/nowhere/server.log")


def at(url: str, model: str = "demo/model") -> TrialSpec:
    return TrialSpec("trial", variant="v", engine=EngineSpec(EngineKind.EXTERNAL, model, url=url))


def answer(status: int, content: object) -> list[bytes | str]:
    body = json.dumps(content).encode()
    return [
        f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
        + body,
        "close",
    ]


def test_it_is_measured_and_never_launched() -> None:
    place = LaunchPlace(port=0, gpus=(), folder=Path("/nowhere"), token="t/1")
    assert not ENGINE.launches
    assert ENGINE.url(at("http://host:8000/"), place) == "http://host:8000"
    with pytest.raises(ConfigError):
        ENGINE.launch_command(at("http://host:8000"), place)


async def test_a_running_sglang_is_ready_and_shows_its_arguments(tmp_path: Path) -> None:
    with simulated_server(tmp_path, "--tp-size", "8") as running:
        spec = at(running.url)
        assert await ENGINE.check_ready(spec, running.url) == ""
        proof = await ENGINE.prove_configuration(spec, running.url, LOG)
    assert proof.effective_args["tp_size"] == 8
    assert proof.versions == {"sglang": "0.5.23-simulated"}


async def test_a_server_that_is_no_sglang_shows_its_models() -> None:
    models = {"object": "list", "data": [{"id": "some/model"}]}
    async with scripted_server(answer(404, {}), answer(404, {}), answer(200, models)) as server:
        spec = at(server.url, "some/model")
        proof = await ENGINE.prove_configuration(spec, server.url, LOG)
    assert (dict(proof.effective_args), dict(proof.versions), proof.gates) == (models, {}, ())


@pytest.mark.parametrize(
    ("cards", "is_same"),
    [
        ([{"id": "other/model"}], False),
        ([{"id": "other/model"}, {"id": "demo/model"}], True),
        ([{"id": "short", "root": "demo/model"}], True),
        ([], True),
    ],
)
async def test_the_list_of_models_is_compared_with_the_model_of_the_job(
    cards: list[dict[str, str]], is_same: bool
) -> None:
    models = {"object": "list", "data": cards}
    async with scripted_server(answer(404, {}), answer(404, {}), answer(200, models)) as server:
        proving = ENGINE.prove_configuration(at(server.url), server.url, LOG)
        if is_same:
            assert (await proving).effective_args
            return
        with pytest.raises(ServerError, match=r"serves other/model.*demo/model") as refused:
            await proving
    assert (refused.value.kind, refused.value.failure_class) == (ErrorKind.CONFIG, "wrong_identity")


async def test_a_chunked_answer_is_read_whole() -> None:
    content = b'{"choices": [{"index": 0}]}'
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nconnection: close\r\n\r\n"
    chunks = [
        head,
        b"5\r\n" + content[:5] + b"\r\n",
        b"%x;x=y\r\n" % len(content[5:]) + content[5:] + b"\r\n",
        b"0\r\n\r\n",
        "close",
    ]
    async with scripted_server(chunks) as server:
        assert await ENGINE.check_ready(at(server.url), server.url) == ""


async def test_a_server_that_does_not_answer_yet_is_waited_for() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert "nothing answers" in await ENGINE.check_ready(at(url), url)
    async with scripted_server(answer(503, {})) as server:
        assert "503" in await ENGINE.check_ready(at(server.url), server.url)
    async with scripted_server(["close"]) as server:
        assert "nothing answers" in await ENGINE.check_ready(at(server.url), server.url)


async def test_a_server_that_refuses_the_request_itself_ends_the_waiting() -> None:
    async with scripted_server(answer(404, {"message": "no such model"})) as server:
        with pytest.raises(ServerError, match="no such model") as refused:
            await ENGINE.check_ready(at(server.url, "other/model"), server.url)
    assert refused.value.kind is ErrorKind.CONFIG


async def test_an_sglang_that_serves_another_model_is_not_measured(tmp_path: Path) -> None:
    with simulated_server(tmp_path) as running:  # it answers for any model name, as SGLang does
        spec = at(running.url, "other/model")
        with pytest.raises(ServerError, match=r"serves demo/model.*other/model") as refused:
            await ENGINE.prove_configuration(spec, running.url, LOG)
    assert (refused.value.kind, refused.value.failure_class) == (ErrorKind.CONFIG, "wrong_identity")


async def test_a_server_may_be_called_by_the_name_that_it_serves_its_model_under(
    tmp_path: Path,
) -> None:
    with simulated_server(tmp_path, "--served-model-name", "short-name") as running:
        assert (
            await ENGINE.prove_configuration(at(running.url, "short-name"), running.url, LOG)
        ).versions


async def test_an_answer_that_is_none_is_told_apart_from_no_answer() -> None:
    page = b"<html>hello</html>"
    html = [
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(page) + page,
        "close",
    ]
    async with scripted_server(html) as server:
        with pytest.raises(ServerError, match=r"does not serve the OpenAI API.*<html>hello"):
            await ENGINE.check_ready(at(server.url), server.url)


MOVED = b"HTTP/1.1 308 Permanent Redirect\r\nlocation: /v2\r\ncontent-length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ([MOVED, "close"], "status 308: redirects are not followed"),
        ([b"HTTP/1.0 501 Unsupported\r\n\r\n", "close"], "returns status 501"),
        ([b"HTTP/2 200\r\n\r\n", "close"], "it begins with 'HTTP/2 200"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n", SILENCE], "it begins with 'SSH-2.0-OpenSSH_9.2"),
        (answer(501, "Unsupported method"), 'status 501: "Unsupported method"'),
        (answer(401, {"error": "key"}), 'status 401: {"error": "key"}'),
    ],
    ids=["redirect", "HTTP/1.0", "HTTP/2", "not HTTP", "501", "401"],
)
async def test_what_waiting_does_not_change_fails_at_once_with_what_was_seen(
    script: list[bytes | str], said: str
) -> None:
    async with scripted_server(script) as server:
        with pytest.raises(ServerError) as refused:
            await ENGINE.check_ready(at(server.url), server.url)
    assert said in refused.value.message
    assert refused.value.hint
    assert (refused.value.kind, refused.value.failure_class) == (
        ErrorKind.CONFIG,
        "request_refused",
    )


async def test_a_server_of_http_1_0_may_be_measured() -> None:
    script = [b'HTTP/1.0 200 OK\r\n\r\n{"choices": [{"index": 0}]}', "close"]
    async with scripted_server(script) as server:
        assert await ENGINE.check_ready(at(server.url), server.url) == ""


async def test_a_port_without_tls_fails_at_once() -> None:
    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ServerError, match="no TLS connection"):
            await ENGINE.check_ready(at(url), url)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_a_server_that_may_yet_answer_is_waited_for_and_its_words_are_kept(
    status: int,
) -> None:
    async with scripted_server(answer(status, {"detail": "too busy"})) as server:
        missing = await ENGINE.check_ready(at(server.url), server.url)
    assert missing == f'a completion of 2 tokens returns status {status}: {{"detail": "too busy"}}'


async def test_a_server_that_has_gone_cannot_prove_anything() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServerError):
        await ENGINE.prove_configuration(at(url), url, LOG)


async def test_a_server_that_shows_nothing_fails_with_what_each_path_answered() -> None:
    scripts = answer(403, {"error": "forbidden"}), ["close"], answer(200, [])
    async with scripted_server(*scripts) as server:
        with pytest.raises(ServerError) as refused:
            await ENGINE.prove_configuration(at(server.url), server.url, LOG)
    said = refused.value.message
    assert '/server_info: status 403: {"error": "forbidden"}; /get_server_info: EOFError: ' in said
    assert "/v1/models: ValueError: " in said
