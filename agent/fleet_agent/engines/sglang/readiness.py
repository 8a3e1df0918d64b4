"""Probes a running SGLang: its health, its identity, a completion and its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet_agent.engines.sglang.launch_identity import launch_difference
from fleet_agent.load.client.http_fetch import HttpAnswer, fetch, parse_json_object, status_text
from fleet_knowledge.sglang_metrics.server_info import (
    MODEL_INFO_PATHS,
    SERVER_INFO_PATHS,
    server_arguments_in,
)
from fleet_protos.errors import ErrorKind, ServerError

_COMPLETION = {
    "text": "ready",
    "sampling_params": {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True},
}


async def check_server(
    url: str, api_key: str = "", *, model_path: str, argv: Sequence[str] = ()
) -> str:
    """Return what is still missing until the server is ready. Return an empty text if it is ready.

    `argv` are the words that followed the program in the launch. Raises ServerError if another
    model, or a server of another launch, answers at `url`. /health alone proves nothing: up to
    0.4.9 it returned 200 at once, and on a busy port another server may answer.
    """
    try:
        status, content = await fetch(url, "/health_generate", api_key=api_key)
        if status != 200:
            return f"/health_generate returns {status_text(status, content)}"
        status, identity = await _fetch_either(url, api_key, *MODEL_INFO_PATHS)
        _check_key(url, status)
        _check_identity(url, model_path, parse_json_object(identity))
        status, info = await _fetch_either(url, api_key, *SERVER_INFO_PATHS)
        if status == 200:
            _check_launch(url, parse_json_object(info), argv)
        status, answer = await fetch(url, "/generate", _COMPLETION, api_key)
        if status != 200 or not parse_json_object(answer).get("output_ids"):
            return f"the server answers a request for 2 tokens with status {status}"
    except (OSError, EOFError, ValueError) as error:
        reason = type(error).__name__
        return f"nothing answers at {url} yet ({reason})"
    return ""


async def check_member(url: str) -> str:
    """Return what is still missing until a node of rank 1 or above is ready. Return an empty text
    if it has loaded its part of the model.

    Such a node serves no requests. Its /health returns 200 only when the model is loaded.
    """
    try:
        status, content = await fetch(url, "/health")
    except (OSError, EOFError, ValueError) as error:
        reason = type(error).__name__
        return f"nothing answers at {url} yet ({reason})"
    return "" if status == 200 else f"/health returns {status_text(status, content)}"


async def fetch_server_info(url: str, api_key: str = "") -> dict[str, Any]:
    """Return the arguments and the version that /server_info reports.

    Raises ServerError if they cannot be fetched.
    """
    try:
        status, content = await _fetch_either(url, api_key, *SERVER_INFO_PATHS)
        if status == 200:
            return dict(server_arguments_in(parse_json_object(content)))
    except (OSError, EOFError, ValueError) as error:
        raise ServerError(
            ErrorKind.SERVER_UNHEALTHY,
            "unhealthy",
            f"{url}/server_info: {type(error).__name__} {error}",
        ) from error
    message = f"{url}/server_info returns {status_text(status, content)}"
    raise ServerError(ErrorKind.SERVER_UNHEALTHY, "unhealthy", message)


def _check_launch(url: str, info: dict[str, Any], argv: Sequence[str]) -> None:
    difference = launch_difference(info, url, argv)
    if difference:
        message = f"another server of the same model answers at {url}: {difference}"
        raise ServerError(ErrorKind.SERVER_UNHEALTHY, "wrong_identity", message)


async def _fetch_either(url: str, api_key: str, path: str, older: str) -> HttpAnswer:
    """Fetch `path`, the name of the endpoint since 0.5.6. If the server does not know this name,
    fetch the `older` name.
    """
    status, content = await fetch(url, path, api_key=api_key)
    return await fetch(url, older, api_key=api_key) if status == 404 else (status, content)


def _check_key(url: str, status: int) -> None:
    if status in (401, 403):
        message = (
            f"another server answers at {url}: it rejects the API key of this launch with status"
            f" {status}"
        )
        raise ServerError(ErrorKind.SERVER_UNHEALTHY, "wrong_identity", message)


def _check_identity(url: str, model_path: str, info: dict[str, Any]) -> None:
    found = info.get("model_path")
    if found != model_path:
        message = (
            f"another server answers at {url}: it serves {found},"
            f" but the agent launched {model_path}"
        )
        raise ServerError(ErrorKind.SERVER_UNHEALTHY, "wrong_identity", message)
