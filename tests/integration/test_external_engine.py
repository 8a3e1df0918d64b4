"""Owns the promises of the adapter of external servers: against a simulated SGLang, and against a
server that is none.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet_agent.core.engine import LaunchPlace
from fleet_agent.engines.external_engine import ExternalEngine
from fleet_protos.errors import ConfigError, ErrorKind, ServerError
from fleet_protos.trial_types import EngineKind, EngineSpec, TrialSpec
from tests.fakes.scripted_server import scripted_server
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
        proof = await ENGINE.prove_configuration(at(server.url), server.url, LOG)
    assert (dict(proof.effective_args), dict(proof.versions), proof.gates) == (models, {}, ())


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
        missing = await ENGINE.check_ready(at(server.url), server.url)
    assert "does not serve the OpenAI API" in missing


async def test_a_server_that_has_gone_cannot_prove_anything() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServerError):
        await ENGINE.prove_configuration(at(url), url, LOG)
