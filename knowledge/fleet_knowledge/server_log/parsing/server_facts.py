"""Reads facts of the server from messages: arguments, capacity, versions."""

from __future__ import annotations

import re
from typing import Any

# The server arguments that a diagnosis shows
_ARGUMENTS = (
    "model_path", "served_model_name", "tp_size", "dp_size", "pp_size", "ep_size", "nnodes",
    "node_rank", "quantization", "dtype", "attention_backend", "mem_fraction_static",
    "max_running_requests", "disable_cuda_graph", "disable_custom_all_reduce",
    "decode_log_interval", "context_length", "port", "speculative_algorithm",
    "speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "device", "disaggregation_mode", "enable_dp_attention",
    "chunked_prefill_size",
)  # fmt: skip
_ARGUMENT = re.compile(
    rf"(?<![\w])['\"]?({'|'.join(_ARGUMENTS)})['\"]?\s*[=:]\s*('[^']*'|\"[^\"]*\"|[^\s,)}}\]]+)"
)
_CAPACITY = re.compile(
    r"\b(max_total_num_tokens|chunked_prefill_size|max_prefill_tokens|max_running_requests|"
    r"context_len)=(\d{1,18})\b"
)
_KV_TOKENS = re.compile(r"KV Cache is allocated\..*?#tokens: (\d{1,18})\b")
_WEIGHTS = re.compile(r"Load weight end\..*?\btype=(\w+)(?:.*?\bdtype=([\w.]+))?")
_VERSIONS = (
    ("sglang", re.compile(r"\bsglang(?:==| version[: =]+|:v| v)(\d+\.\d+[\w.]*)", re.I)),
    (
        "nccl",
        re.compile(
            r"\bsglang is using nccl==(\d[\w.+-]*)|^NCCL version (\d[\w.+-]*)|NCCL INFO NCCL "
            r"version (\d[\w.+-]*)"
        ),
    ),
    ("torch", re.compile(r"\btorch(?:==| version[: =]+)(\d+\.\d+[\w.+]*)", re.I)),
    ("cuda", re.compile(r"\bCUDA(?:[- ]version)?[: =]+(\d+\.\d+)\b")),
    ("driver", re.compile(r"\b(?:Driver Version|driver version)[: =]+(\d+\.\d+[\d.]*)")),
    ("flashinfer", re.compile(r"\bflashinfer(?:[-_]python)?==(\d+\.\d+[\w.]*)")),
)


def read_logged_arguments(text: str) -> dict[str, Any]:
    """Return those arguments of a `server_args=` line that a diagnosis shows. If an argument occurs
    more than once, its first value counts.
    """
    found: dict[str, Any] = {}
    for name, value in _ARGUMENT.findall(text):
        found.setdefault(name, _value(value))
    return {name: value for name, value in found.items() if value is not None}


FACT_KEYWORDS = (
    "max_total_num_tokens=",
    "KV Cache is allocated",
    "Load weight end",
    "version",
    "==",
    "sglang:v",
    "sglang v",
)
"""Every line with a fact contains one of these, in lower case or as written."""


def read_server_facts(text: str) -> dict[str, Any]:
    """Return what a message says about the server: KV tokens, request limits,
    architecture, dtype.
    """
    found: dict[str, Any] = {}
    if "max_total_num_tokens=" in text:
        found |= {
            ("kv_tokens" if name == "max_total_num_tokens" else name): int(value)
            for name, value in _CAPACITY.findall(text)
        }
    if kv := _KV_TOKENS.search(text):
        found["kv_tokens"] = int(kv[1])
    if weights := _WEIGHTS.search(text):
        found |= {
            "architecture": weights[1],
            **({"dtype": weights[2].removeprefix("torch.")} if weights[2] else {}),
        }
    return found


def read_versions(text: str) -> dict[str, str]:
    """Return the version of each component, such as `nccl`, that a message names."""
    lowered = text.lower()
    if (
        "version" not in lowered
        and "==" not in text
        and "sglang:v" not in lowered
        and "sglang v" not in lowered
    ):
        return {}
    return {
        name: next(filter(None, found.groups())).rstrip(".")
        for name, words in _VERSIONS
        if (found := words.search(text))
    }


def _value(text: str) -> Any:
    if text.strip("'\"") in ("None", "null"):
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    text = text.strip("'\"")
    try:
        return int(text) if len(text) < 19 else text
    except ValueError:
        pass
    try:
        return float(text) if re.fullmatch(r"-?\d{1,18}\.\d{1,18}", text) else text
    except ValueError:
        return text
