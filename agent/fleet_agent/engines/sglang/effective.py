"""Owns the comparison of what a job asked for with what the server shows: gates, versions, NCCL's own words. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_protos.events import ConfigurationProved
from fleet_protos.trial import Gate, GateEffect

ARGS_CHANGED = "args_changed_by_server"
ARGS_NOT_SHOWN = "args_not_shown_by_server"
ENV_NOT_EFFECTIVE = "env_not_effective"
_NCCL_SET = re.compile(r"NCCL INFO (NCCL_\w+) set by environment to (.*?)\.?$", re.MULTILINE)
_NCCL_VERSION = re.compile(r"^.*NCCL version (\S+)", re.MULTILINE)
_ABOUT_LOGGING = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
_NOT_SHOWN = ("internal_states", "launch_command", "status")  # state, not configuration
_BACKENDS = ("attention_backend", "decode_attention_backend", "prefill_attention_backend", "speculative_draft_attention_backend")
_SECRET = ("api_key", "admin_api_key", "ssl_keyfile_password")


@dataclass(frozen=True, slots=True)
class Asked:
    """One argument as it was asked for and as it is shown, among all that are shown."""

    value: Any
    shown: Any
    all_shown: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class KnownChange:
    """A change that SGLang makes by itself and that leaves the job's meaning whole. `versions` is where it was seen."""

    argument: str
    versions: str
    source: str
    why: str
    holds: Callable[[Asked], bool]


def _chain(asked: Asked) -> bool:
    steps = asked.all_shown.get("speculative_num_steps")
    return asked.all_shown.get("speculative_eagle_topk") == 1 and isinstance(steps, int) and asked.shown == steps + 1


def _is_one_for(*algorithms: str) -> Callable[[Asked], bool]:
    return lambda asked: asked.shown == 1 and asked.all_shown.get("speculative_algorithm") in algorithms


def _becomes(value: Any, shown: Any) -> Callable[[Asked], bool]:
    return lambda asked: (asked.value, asked.shown) == (value, shown)


def _uses(asked: Asked, *backends: str) -> bool:
    return any(asked.all_shown.get(name) in backends for name in _BACKENDS)


def _page_of(*backends: str) -> Callable[[Asked], bool]:
    return lambda asked: asked.shown in (64, 128) and _uses(asked, *backends)


def _scaled(asked: Asked, factor: float) -> bool:
    return abs(float(asked.shown) - float(asked.value) * factor) < 1e-9


def _relaxed_for_dp(asked: Asked) -> bool:
    return bool(asked.all_shown.get("enable_dp_attention")) and _scaled(asked, 0.3)


def _shared_over_dp(asked: Asked) -> bool:
    ranks = asked.all_shown.get("attn_dp_size") or asked.all_shown.get("dp_size") or 1
    return bool(asked.all_shown.get("enable_dp_attention")) and int(asked.shown) == int(asked.value) // int(ranks)


KNOWN_CHANGES = (
    KnownChange(
        "speculative_algorithm", "0.4.3 - 0.5.23", "server_args.py", "NEXTN is SGLang's alias of EAGLE", _becomes("NEXTN", "EAGLE")
    ),
    *(
        KnownChange(
            "speculative_algorithm",
            "0.5.23",
            "arg_groups/speculative_hook.py",
            "a Gemma 4 assistant drafts in its own way",
            _becomes(asked, "FROZEN_KV_MTP"),
        )
        for asked in ("EAGLE", "NEXTN")
    ),
    KnownChange(
        "speculative_num_draft_tokens",
        "0.4.4 - 0.5.23",
        "arg_groups/speculative_hook.py",
        "with speculative_eagle_topk=1 SGLang always uses num_steps + 1",
        _chain,
    ),
    KnownChange(
        "speculative_num_steps", "0.5.23", "arg_groups/speculative_hook.py", "this algorithm always has 1", _is_one_for("DFLASH", "DSPARK")
    ),
    KnownChange(
        "speculative_eagle_topk", "0.5.23", "arg_groups/speculative_hook.py", "this algorithm always has 1", _is_one_for("DFLASH", "DSPARK")
    ),
    KnownChange(
        "page_size",
        "0.5.23",
        "arg_groups/overrides.py",
        "this attention backend has its own page sizes",
        _page_of("flashmla", "cutlass_mla", "trtllm_mla", "trtllm_mha", "cutedsl_mla", "fa4", "hpc_ops", "intel_xpu"),
    ),
    KnownChange("kv_cache_dtype", "0.5.23", "arg_groups/overrides.py", "two names of one type", _becomes("bf16", "bfloat16")),
    KnownChange(
        "schedule_conservativeness",
        "0.5.23",
        "arg_groups/parallel_hook.py",
        "DP attention multiplies it by 0.3",
        _relaxed_for_dp,
    ),
    KnownChange(
        "chunked_prefill_size",
        "0.5.23",
        "arg_groups/parallel_hook.py",
        "DP attention divides it by its ranks",
        _shared_over_dp,
    ),
    KnownChange(
        "mem_fraction_static",
        "0.5.23",
        "arg_groups/attention_hook.py",
        "with aiter and a long context SGLang keeps 15 % for its workspace",
        lambda asked: _uses(asked, "aiter") and _scaled(asked, 0.85),
    ),
)


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
            known = _known_change(name, Asked(value, shown[name], shown))
            effect = GateEffect.FLAG if known else GateEffect.VOID_TRIAL
            gates.append(Gate(ARGS_CHANGED, effect, f"asked {name}={value}, in effect {shown[name]}{known and f' ({known})'}"))
    return tuple(gates)


def _known_change(name: str, asked: Asked) -> str:
    return next((change.why for change in KNOWN_CHANGES if change.argument == name and change.holds(asked)), "")


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
