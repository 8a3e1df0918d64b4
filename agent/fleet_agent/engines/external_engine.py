"""Adapts a server that somebody else runs. The agent probes and measures such a server; it never
launches, changes or stops it.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from fleet_agent.core.engine import LaunchCommand, LaunchPlace
from fleet_agent.engines.sglang.proof import effective_args
from fleet_agent.load.client.http_fetch import excerpt, fetch, parse_json_object, status_text
from fleet_protos.errors import ConfigError, ErrorKind, ServerError
from fleet_protos.events import ConfigurationProved
from fleet_protos.trial_types import Gate, GateEffect, TrialSpec

_PROBE_MESSAGES = [{"role": "user", "content": "ready?"}]
# 408, 425 and 429 ask the client to try again
_RETRY_STATUSES = (408, 425, 429)
_FINAL_STATUSES = (501, 505)  # not implemented, HTTP version not supported
_WRONG_ADDRESS = "set engine.url to the address at which the server itself answers"


class ExternalEngine:
    """Adapts any server with the OpenAI API."""

    launches = False

    def launch_command(self, spec: TrialSpec, place: LaunchPlace) -> LaunchCommand:
        """Raise ConfigError, because an external server is never launched."""
        raise ConfigError(
            f"variant {spec.variant}: the agent does not launch an external server",
            "set engine.kind: sglang to have the agent launch one",
        )

    def url(self, spec: TrialSpec, place: LaunchPlace) -> str:
        """Return the URL that the job names, without a trailing slash."""
        return spec.engine.url.rstrip("/")

    async def check_ready(self, spec: TrialSpec, url: str, api_key: str = "") -> str:
        """Ask the server for a chat completion of 2 tokens, and return what is still missing.
        Return an empty text if the completion succeeds.

        No answer, status 429 and most 5xx statuses mean that the server is not ready yet. Raises
        ServerError for what waiting does not change: a redirect, another 4xx status (for example
        because the server does not have the model), and an answer that is not HTTP/1.1 or not JSON.
        """
        body = {
            "model": spec.engine.model_path,
            "messages": _PROBE_MESSAGES,
            "max_tokens": 2,
            "temperature": 0,
        }
        try:
            status, content = await fetch(url, "/v1/chat/completions", body, api_key)
        except ValueError as error:
            raise _refused(f"{url} does not speak HTTP/1.1: {error}", _WRONG_ADDRESS) from error
        except ssl.SSLError as error:
            hint = "check whether engine.url begins with https:// rightly, and the certificate"
            raise _refused(f"no TLS connection to {url}: {error}", hint) from error
        except (OSError, EOFError) as error:
            return f"nothing answers at {url} yet ({_error_text(error)})"
        if status == 200:
            return _missing_in_completion(url, content)
        seen = f"a completion of 2 tokens returns {status_text(status, content)}"
        if 300 <= status < 400:
            raise _refused(f"{url}: {seen}: redirects are not followed", _WRONG_ADDRESS)
        if (400 <= status < 500 and status not in _RETRY_STATUSES) or status in _FINAL_STATUSES:
            raise _refused(f"{url}: {seen}", "correct model.path or engine.url")
        return seen

    async def prove_configuration(
        self, spec: TrialSpec, url: str, log_path: Path, api_key: str = ""
    ) -> ConfigurationProved:
        """Return the configuration that the server shows: /server_info of an SGLang, else the list
        of models.

        Raises ServerError if the server shows neither of the two. Raises ServerError if it serves
        another model.
        """
        seen = []
        for path in ("/server_info", "/get_server_info", "/v1/models"):
            try:
                status, content = await fetch(url, path, api_key=api_key)
                shown = parse_json_object(content) if status == 200 else None
            except (OSError, EOFError, ValueError) as error:
                seen.append(f"{path}: {_error_text(error)}")
                continue
            if shown is None:
                seen.append(f"{path}: {status_text(status, content)}")
                continue
            _check_identity(spec, url, shown)
            return ConfigurationProved(
                effective_args=effective_args.visible_args(shown),
                versions=_versions(shown),
                gates=_gates(shown),
            )
        raise ServerError(
            ErrorKind.SERVER_UNHEALTHY,
            "unhealthy",
            f"{url} does not show what it serves: {'; '.join(seen)}",
        )


def _refused(message: str, hint: str) -> ServerError:
    """Return the error for an answer that waiting does not change."""
    return ServerError(ErrorKind.CONFIG, "request_refused", message, hint)


def _missing_in_completion(url: str, content: bytes) -> str:
    """Return an empty text if an answer with status 200 is a completion. Raises ServerError if it
    is not JSON.
    """
    try:
        answer = parse_json_object(content)
    except ValueError as error:
        message = f"{url} does not serve the OpenAI API: its answer is not JSON: {excerpt(content)}"
        raise _refused(message, _WRONG_ADDRESS) from error
    if answer.get("choices"):
        return ""
    return f"the answer to a completion of 2 tokens has no choices: {excerpt(content)}"


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _served_names(shown: Mapping[str, object]) -> list[str]:
    """Return the names under which a server offers models, from /server_info or /v1/models."""
    names = [str(shown[key]) for key in ("served_model_name", "model_path") if shown.get(key)]
    cards = shown.get("data")
    for card in cards if isinstance(cards, list) else []:
        if isinstance(card, dict):
            names += [str(card[key]) for key in ("id", "root") if card.get(key)]
    return list(dict.fromkeys(names))


def _check_identity(spec: TrialSpec, url: str, shown: dict[str, object]) -> None:
    """Raise ServerError if the server shows another model than the job names.

    A test request would not find this: SGLang accepts any model name in a request. Other servers
    reject a name that is not theirs.
    """
    names = _served_names(shown)
    if names and spec.engine.model_path not in names:
        message = (
            f"{url} serves {names[0]}, but the job names {spec.engine.model_path}:"
            f" set model.path to {names[0]}, or change engine.url"
        )
        raise ServerError(ErrorKind.CONFIG, "wrong_identity", message)


def _gates(shown: dict[str, object]) -> tuple[Gate, ...]:
    """Return a flag if the server is a simulated one, so that nobody takes its modelled times for
    measured times.
    """
    if not shown.get("simulated"):
        return ()
    time_scale = shown.get("time_scale", 1)
    message = (
        f"the server reports that it is simulated with time scale ×{time_scale}:"
        " its numbers come from a model of time, not from a GPU"
    )
    return (Gate("simulated_server", GateEffect.FLAG, message),)


def _versions(shown: dict[str, object]) -> dict[str, str]:
    return {"sglang": str(shown["version"])} if "version" in shown else {}
