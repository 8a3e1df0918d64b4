"""Owns the comparison of what a job asked for with what the server shows: gates, versions, NCCL's own words. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fleet_knowledge.sglang.changes import Asked, known_change
from fleet_protos.events import ConfigurationProved
from fleet_protos.trial import Gate, GateEffect

ARGS_CHANGED = "args_changed_by_server"
ARGS_NOT_SHOWN = "args_not_shown_by_server"
ENV_NOT_EFFECTIVE = "env_not_effective"
_NCCL_SET = re.compile(r"NCCL INFO (NCCL_\w+) set by environment to (.*?)\.?$", re.MULTILINE)
_NCCL_VERSION = re.compile(r"^.*NCCL version (\S+)", re.MULTILINE)
_ABOUT_LOGGING = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
_NOT_SHOWN = ("internal_states", "launch_command", "status")  # state, not configuration
_SECRET = ("api_key", "admin_api_key", "ssl_keyfile_password")


def proof(asked: Mapping[str, Any], env: Mapping[str, str], info: Mapping[str, Any], log: str) -> ConfigurationProved:
    """What took effect, from /server_info and the server's log; the host's fingerprint is left empty."""
    gates = (*argument_gates(asked, info), *environment_gates(env, log))
    versions = {"sglang": str(info.get("version", "")), **nccl_version(log)}
    return ConfigurationProved(effective_args=effective(info), versions=versions, env=nccl_seen(log), gates=gates)


def effective(info: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that /server_info shows, without the server's state and without secrets."""
    return {name: "…" if name in _SECRET and value else value for name, value in info.items() if name not in _NOT_SHOWN}


def argument_gates(asked: Mapping[str, Any], shown: Mapping[str, Any]) -> tuple[Gate, ...]:
    """One gate for each argument that the server shows otherwise: a flag for changes SGLang is known to make, else the trial is void."""
    gates = []
    for name, value in asked.items():
        if value is None or (value is False and not shown.get(name)):
            continue
        if name not in shown:
            gates.append(Gate(ARGS_NOT_SHOWN, GateEffect.FLAG, f"{name}={value} was passed; /server_info does not show it"))
        elif not _same(value, shown[name]):
            known = known_change(name, Asked(value, shown[name], shown), str(shown.get("version", "")))
            effect, why = (GateEffect.FLAG, f" ({known.why})") if known else (GateEffect.VOID_TRIAL, "")
            gates.append(Gate(ARGS_CHANGED, effect, f"asked {name}={value}, in effect {shown[name]}{why}"))
    return tuple(gates)


def _same(asked: Any, shown: Any) -> bool:
    """Equal once both are read alike: 0.9 and "0.90", one entry and a list of it, a map and its JSON."""
    if isinstance(asked, list | tuple):
        return isinstance(shown, list | tuple) and len(asked) == len(shown) and all(map(_same, asked, shown))
    if isinstance(shown, list | tuple):
        return len(shown) == 1 and _same(asked, shown[0])
    try:
        return float(asked) == float(shown)
    except (TypeError, ValueError):
        return asked == shown or str(asked) == str(shown) or _json(asked) == _json(shown)


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def environment_gates(env: Mapping[str, str], log: str) -> tuple[Gate, ...]:
    """One gate for each NCCL variable of the job that NCCL's own lines do not name; none when NCCL wrote no line at all."""
    if "NCCL INFO" not in log:
        return ()
    seen = nccl_seen(log)
    gates = []
    for name, value in sorted(env.items()):
        if name.startswith("NCCL_") and name not in _ABOUT_LOGGING and seen.get(name) != value:
            found = f"NCCL says {seen[name]}" if name in seen else "NCCL's log does not name it"
            gates.append(Gate(ENV_NOT_EFFECTIVE, GateEffect.VOID_TRIAL, f"{name}={value} did not reach NCCL: {found}"))
    return tuple(gates)


def nccl_seen(log: str) -> dict[str, str]:
    """NCCL variables and their values, from `<VAR> set by environment to <value>.`"""
    return {name: value.strip() for name, value in _NCCL_SET.findall(log)}


def nccl_version(log: str) -> dict[str, str]:
    """{"nccl": version} as the loaded library printed it; empty when it printed none."""
    found = _NCCL_VERSION.search(log)
    return {"nccl": found[1]} if found else {}
