"""Owns the looks at a running SGLang: is it healthy, is it the one that was launched, does it complete a request, what does it show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet_agent.engines.sglang.launch_identity import stranger
from fleet_agent.load.client.http_fetch import Answer, as_object, exchange
from fleet_knowledge.sglang_metrics.server_info import MODEL_PATHS, PATHS, arguments_of
from fleet_protos.errors import ErrorKind, ServerFailed

_COMPLETION = {"text": "ready", "sampling_params": {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True}}


async def look(url: str, *, model_path: str, words: Sequence[str] = ()) -> str:
    """Empty when ready, else what is missing. Raises ServerFailed when another model, or another launch, answers at `url`.

    `words`: what followed the program when it was launched here. /health alone proves nothing: up to 0.4.9 it answered 200 at once, and on
    a busy port it is another server's.
    """
    try:
        status, _ = await exchange(url, "/health_generate")
        if status != 200:
            return f"/health_generate answers {status}"
        _, identity = await _either(url, *MODEL_PATHS)
        _check_identity(url, model_path, as_object(identity))
        status, info = await _either(url, *PATHS)
        if status == 200:
            _check_launch(url, as_object(info), words)
        status, answer = await exchange(url, "/generate", _COMPLETION)
        if status != 200 or not as_object(answer).get("output_ids"):
            return f"a completion of 2 tokens answers {status}"
    except (OSError, EOFError, ValueError) as error:
        return f"nothing answers at {url} yet ({type(error).__name__})"
    return ""


async def holds(url: str) -> str:
    """Empty when a node of rank 1 and above has its part of the model: it serves nothing, and answers /health only then."""
    try:
        status, _ = await exchange(url, "/health")
    except (OSError, EOFError, ValueError) as error:
        return f"nothing answers at {url} yet ({type(error).__name__})"
    return "" if status == 200 else f"/health answers {status}"


async def server_info(url: str) -> dict[str, Any]:
    """/server_info. Raises ServerFailed when it cannot be had."""
    try:
        status, content = await _either(url, *PATHS)
        if status == 200:
            return dict(arguments_of(as_object(content)))
    except (OSError, EOFError, ValueError) as error:
        raise ServerFailed(ErrorKind.SERVER_UNHEALTHY, "unhealthy", f"{url}/server_info: {type(error).__name__} {error}") from error
    raise ServerFailed(ErrorKind.SERVER_UNHEALTHY, "unhealthy", f"{url}/server_info answers {status}")


def _check_launch(url: str, info: dict[str, Any], words: Sequence[str]) -> None:
    difference = stranger(info, url, words)
    if difference:
        message = f"another server of {info.get('model_path')} answers at {url}: {difference}"
        raise ServerFailed(ErrorKind.SERVER_UNHEALTHY, "wrong_identity", message)


async def _either(url: str, path: str, older: str) -> Answer:
    """The endpoint under its name from 0.5.6 on, or the older one."""
    status, content = await exchange(url, path)
    return await exchange(url, older) if status == 404 else (status, content)


def _check_identity(url: str, model_path: str, info: dict[str, Any]) -> None:
    found = info.get("model_path")
    if found != model_path:
        message = f"another server answers at {url}: it serves {found}, and {model_path} was launched"
        raise ServerFailed(ErrorKind.SERVER_UNHEALTHY, "wrong_identity", message)
