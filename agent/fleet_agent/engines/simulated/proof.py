"""Owns the comparison of what a job asked for with what the server shows: gates, versions and causes of death. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fleet_protos.trial import Gate, GateEffect

ARGS_CHANGED = "args_changed_by_server"
ARGS_NOT_SHOWN = "args_not_shown_by_server"
ENV_NOT_EFFECTIVE = "env_not_effective"
_NCCL_SET = re.compile(r"NCCL INFO (NCCL_\w+) set by environment to (.*?)\.?$", re.MULTILINE)
_NCCL_VERSION = re.compile(r"^.*NCCL version (\S+)", re.MULTILINE)
_ABOUT_LOGGING = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")


def argument_gates(asked: Mapping[str, Any], shown: Mapping[str, Any]) -> tuple[Gate, ...]:
    """One gate for each argument that the server shows otherwise: a flag for changes SGLang is known to make, else the trial is void."""
    gates = []
    for name, value in asked.items():
        if value is None or value is False:
            continue
        if name not in shown:
            gates.append(Gate(ARGS_NOT_SHOWN, GateEffect.FLAG, f"{name}={value} was passed; /server_info does not show it"))
        elif not _same(value, shown[name]):
            known = _known_change(name, asked, shown)
            effect = GateEffect.FLAG if known else GateEffect.VOID_TRIAL
            gates.append(Gate(ARGS_CHANGED, effect, f"asked {name}={value}, in effect {shown[name]}{known and f' ({known})'}"))
    return tuple(gates)


def _known_change(name: str, asked: Mapping[str, Any], shown: Mapping[str, Any]) -> str:
    if name == "speculative_algorithm" and (asked[name], shown[name]) == ("NEXTN", "EAGLE"):
        return "NEXTN is SGLang's alias of EAGLE"
    steps = shown.get("speculative_num_steps")
    chain = shown.get("speculative_eagle_topk") == 1 and isinstance(steps, int) and shown.get(name) == steps + 1
    if name == "speculative_num_draft_tokens" and chain:
        return "with speculative_eagle_topk=1 SGLang always uses num_steps + 1"
    return ""


def _same(asked: Any, shown: Any) -> bool:
    if isinstance(asked, list | tuple):
        return isinstance(shown, list | tuple) and len(asked) == len(shown) and all(map(_same, asked, shown))
    try:
        return float(asked) == float(shown)
    except (TypeError, ValueError):
        return asked == shown or str(asked) == str(shown)


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


def explain(log: str, exit_code: int) -> tuple[str, str]:
    """(failure class, line of cause) of a simulated server that ended."""
    for line in reversed(log.splitlines()):
        if "address already in use" in line:
            return "port_in_use", line
        if "server.py: error:" in line:
            return "argument_error", line
    if exit_code == -9:
        return "killed", "the server got SIGKILL, and not from its agent"
    return "unknown", ""
