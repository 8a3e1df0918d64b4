"""Owns the adapter of a server that somebody else runs: it is looked at and measured, never
launched, changed or stopped.
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
    """An Engine for any server with the OpenAI API."""

    launches = False

    def launch_command(self, spec: TrialSpec, place: LaunchPlace) -> LaunchCommand:
        """Nothing is launched. Raises ConfigError."""
        raise ConfigError(
            f"variant {spec.variant}: an external server is not launched",
            "write kind: sglang to have one launched",
        )

    def url(self, spec: TrialSpec, place: LaunchPlace) -> str:
        """Where the job says it is."""
        return spec.engine.url.rstrip("/")

    async def check_ready(self, spec: TrialSpec, url: str) -> str:
        """Empty when it answers a chat of 2 tokens. Raises ServerFailed when it refuses the request
        itself, as for a model it has not.
        """
        body = {
            "model": spec.engine.model_path,
            "messages": _PROBE_MESSAGES,
            "max_tokens": 2,
            "temperature": 0,
        }
        try:
            status, content = await fetch(url, "/v1/chat/completions", body)
            if status == 200:
                return (
                    ""
                    if parse_json_object(content).get("choices")
                    else "a completion of 2 tokens has no choice in it"
                )
        except ValueError:
            return f"what answers at {url} is not the API of a server: its answer cannot be read"
        except (OSError, EOFError) as error:
            return f"nothing answers at {url} yet ({type(error).__name__})"
        if 400 <= status < 500 and status not in _RETRY_STATUSES:
            excerpt = content[:300].decode(errors="replace")
            raise ServerError(
                ErrorKind.CONFIG,
                "request_refused",
                f"{url} refuses a completion with {status}: {excerpt}",
            )
        return f"a completion of 2 tokens answers {status}"

    async def prove_configuration(
        self, spec: TrialSpec, url: str, log_path: Path
    ) -> ConfigurationProved:
        """/server_info when it is an SGLang, else its model list. Raises ServerFailed when it shows
        neither, or serves another model.
        """
        for path in ("/server_info", "/get_server_info", "/v1/models"):
            try:
                status, content = await fetch(url, path)
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
            f"{url} shows neither /server_info nor /v1/models",
        )


def _check_identity(spec: TrialSpec, url: str, shown: dict[str, object]) -> None:
    """An SGLang answers for whatever model a request names; other servers refuse a name that is not
    theirs.
    """
    names = [str(shown[key]) for key in ("served_model_name", "model_path") if shown.get(key)]
    if names and spec.engine.model_path not in names:
        message = f"{url} serves {names[0]}, and the job names {spec.engine.model_path}: write the former as model.path, or another url"
        raise ServerError(ErrorKind.CONFIG, "wrong_identity", message)


def _gates(shown: dict[str, object]) -> tuple[Gate, ...]:
    """A model of time must never pass for a measurement, whoever started it."""
    if not shown.get("simulated"):
        return ()
    message = f"the server says that it is simulated, ×{shown.get('time_scale', 1)}: its numbers are a model of time at that speed"
    return (Gate("simulated_server", GateEffect.FLAG, message),)


def _versions(shown: dict[str, object]) -> dict[str, str]:
    return {"sglang": str(shown["version"])} if "version" in shown else {}
