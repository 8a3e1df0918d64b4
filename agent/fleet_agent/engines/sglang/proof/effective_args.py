"""Compares the arguments that a job requested with those that the server reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fleet_agent.engines.sglang.proof import nccl_gates
from fleet_agent.engines.sglang.proof.nccl_gates import NcclEvidence
from fleet_knowledge.sglang.argument_changes import ArgumentChange, find_known_change
from fleet_protos.events import ConfigurationProved
from fleet_protos.trial_types import Gate, GateEffect

ARGS_CHANGED = "args_changed_by_server"
ARGS_NOT_SHOWN = "args_not_shown_by_server"
_NOT_SHOWN = ("internal_states", "launch_command", "status")  # state, not configuration
_SECRET = ("api_key", "admin_api_key", "ssl_keyfile_password")


def build_proof(
    asked: Mapping[str, Any],
    env: Mapping[str, str],
    info: Mapping[str, Any],
    evidence: NcclEvidence,
) -> ConfigurationProved:
    """Return the configuration that took effect, from /server_info and the NCCL evidence.

    The host's fingerprint is left empty.
    """
    gates = (*compare_arguments(asked, info), *nccl_gates.check_nccl(env, evidence, info))
    versions = {"sglang": str(info.get("version", "")), **nccl_log_version(evidence)}
    seen = nccl_gates.values_seen(evidence.facts)
    return ConfigurationProved(
        effective_args=visible_args(info),
        versions=versions,
        env=seen,
        gates=gates,
        witness=evidence.witness,
        nccl=nccl_gates.nccl_to_json(evidence),
    )


def add_versions(proved: ConfigurationProved, installed: Mapping[str, str]) -> ConfigurationProved:
    """Return the proof with the installed versions added. A version that the server itself reports
    takes precedence.
    """
    return replace(proved, versions={**installed, **proved.versions})


def visible_args(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in /server_info, without the server's state. The value of a secret
    becomes `…`.
    """
    return {
        name: "…" if name in _SECRET and value else value
        for name, value in info.items()
        if name not in _NOT_SHOWN
    }


def compare_arguments(asked: Mapping[str, Any], shown: Mapping[str, Any]) -> tuple[Gate, ...]:
    """Return one gate for each argument that the server does not report, or reports with another
    value.

    An argument that the server does not report is flagged. So is a change that SGLang is known to
    make. Any other change voids the trial.
    """
    gates = []
    for name, value in asked.items():
        if value is None or (value is False and not shown.get(name)):
            continue
        if name not in shown:
            gates.append(
                Gate(
                    ARGS_NOT_SHOWN,
                    GateEffect.FLAG,
                    f"{name}={value} was passed, but /server_info does not show it",
                )
            )
        elif not _is_same(value, shown[name]):
            known = find_known_change(
                name, ArgumentChange(value, shown[name], shown), str(shown.get("version", ""))
            )
            effect = GateEffect.FLAG if known else GateEffect.VOID_TRIAL
            why = f" ({known.why})" if known else ""
            in_effect = shown[name]
            message = f"the job requested {name}={value}, but {in_effect} is in effect{why}"
            gates.append(Gate(ARGS_CHANGED, effect, message))
    return tuple(gates)


def _is_same(asked: Any, shown: Any) -> bool:
    """Return whether a requested value and a reported value mean the same.

    For example, 0.9 equals "0.90", a single value equals a list with only that value, and a map
    equals its JSON.
    """
    if isinstance(asked, list | tuple):
        return (
            isinstance(shown, list | tuple)
            and len(asked) == len(shown)
            and all(map(_is_same, asked, shown))
        )
    if isinstance(shown, list | tuple):
        return len(shown) == 1 and _is_same(asked, shown[0])
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


def nccl_log_version(evidence: NcclEvidence) -> dict[str, str]:
    """Return {"nccl": version}, with the version that the loaded library printed. Return nothing if
    it printed none.
    """
    return {"nccl": evidence.facts.versions[-1]} if evidence.facts.versions else {}
