"""Adapts a server that somebody else runs. The agent probes and measures such a server; it never
launches, changes or stops it.
"""

from __future__ import annotations

from pathlib import Path

from fleet_agent.core.engine import LaunchCommand, LaunchPlace
from fleet_agent.engines.sglang.proof import effective_args
from fleet_agent.load.client.http_fetch import fetch, parse_json_object
from fleet_protos.errors import ConfigError, ErrorKind, ServerError
from fleet_protos.events import ConfigurationProved
from fleet_protos.trial_types import Gate, GateEffect, TrialSpec

_PROBE_MESSAGES = [{"role": "user", "content": "ready?"}]
_RETRY_STATUSES = (502, 503, 504, 429)


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

        Status 429, 502, 503 or 504 means that the server is not ready yet. Raises ServerError if
        the server rejects the request with another 4xx status, for example because it does not have
        the model.
        """
        body = {
            "model": spec.engine.model_path,
            "messages": _PROBE_MESSAGES,
            "max_tokens": 2,
            "temperature": 0,
        }
        try:
            status, content = await fetch(url, "/v1/chat/completions", body, api_key)
            if status == 200:
                has_choices = bool(parse_json_object(content).get("choices"))
                return "" if has_choices else "the answer to a request for 2 tokens has no choices"
        except ValueError:
            return f"{url} does not serve the OpenAI API: its reply is not valid HTTP with JSON"
        except (OSError, EOFError) as error:
            reason = type(error).__name__
            return f"nothing answers at {url} yet ({reason})"
        if 400 <= status < 500 and status not in _RETRY_STATUSES:
            excerpt = content[:300].decode(errors="replace")
            raise ServerError(
                ErrorKind.CONFIG,
                "request_refused",
                f"{url} rejects a completion with status {status}: {excerpt}",
            )
        return f"the server answers a request for 2 tokens with status {status}"

    async def prove_configuration(
        self, spec: TrialSpec, url: str, log_path: Path, api_key: str = ""
    ) -> ConfigurationProved:
        """Return the configuration that the server shows: /server_info of an SGLang, else the list
        of models.

        Raises ServerError if the server shows neither of the two. Raises ServerError if it serves
        another model.
        """
        for path in ("/server_info", "/get_server_info", "/v1/models"):
            try:
                status, content = await fetch(url, path, api_key=api_key)
                if status == 200:
                    shown = parse_json_object(content)
                    _check_identity(spec, url, shown)
                    return ConfigurationProved(
                        effective_args=effective_args.visible_args(shown),
                        versions=_versions(shown),
                        gates=_gates(shown),
                    )
            except (OSError, EOFError, ValueError):
                continue
        raise ServerError(
            ErrorKind.SERVER_UNHEALTHY,
            "unhealthy",
            f"{url} serves neither /server_info nor /v1/models",
        )


def _check_identity(spec: TrialSpec, url: str, shown: dict[str, object]) -> None:
    """Raise ServerError if the server shows another model than the job names.

    A test request would not find this: SGLang accepts any model name in a request. Other servers
    reject a name that is not theirs.
    """
    names = [str(shown[key]) for key in ("served_model_name", "model_path") if shown.get(key)]
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
