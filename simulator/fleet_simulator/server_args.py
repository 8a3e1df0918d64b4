"""Parses SGLang's command line and resolves its arguments as SGLang 0.5.23 does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fleet_simulator.time_model import Speculation

_ALIASES = {
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "model": "model_path",
}
_SPECULATIVE_RUNNING_CAP = 48
DEFAULT_RUNNING_CAP = 2048
_EAGLE_LIKE = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "FROZEN_KV_MTP")

DEFAULTS: dict[str, Any] = {
    "model_path": "",
    "tokenizer_path": None,
    "tokenizer_mode": "auto",
    "load_format": "auto",
    "trust_remote_code": False,
    "context_length": None,
    "dtype": "auto",
    "quantization": None,
    "kv_cache_dtype": "auto",
    "mem_fraction_static": 0.85,
    "max_running_requests": None,
    "max_total_tokens": None,
    "chunked_prefill_size": 8192,
    "max_prefill_tokens": 16384,
    "schedule_policy": "fcfs",
    "page_size": 1,
    "disable_radix_cache": False,
    "disable_overlap_schedule": False,
    "nnodes": 1,
    "node_rank": 0,
    "dist_init_addr": None,
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "ep_size": 1,
    "device": "cuda",
    "random_seed": 1,
    "host": "127.0.0.1",
    "port": 30000,
    "served_model_name": None,
    "enable_cache_report": False,
    "enable_metrics": False,
    "log_level": "info",
    "decode_log_interval": 40,
    "attention_backend": None,
    "disable_cuda_graph": False,
    "disable_custom_all_reduce": False,
    "enable_nccl_nvls": False,
    "enable_symm_mem": False,
    "enable_mscclpp": False,
    "enable_torch_symm_mem": False,
    "enable_flashinfer_allreduce_fusion": False,
    "enable_deterministic_inference": False,
    "stream_interval": 1,
    "skip_server_warmup": False,
    "api_key": None,
    "speculative_algorithm": None,
    "speculative_draft_model_path": None,
    "speculative_draft_model_revision": None,
    "speculative_num_steps": None,
    "speculative_eagle_topk": None,
    "speculative_num_draft_tokens": None,
    "speculative_ngram_max_bfs_breadth": 10,
}


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """Return the options on a command line. The keys are SGLang's names with underscores.

    An option without a value is True. An option with several values is a list. Raises ValueError
    for a word that belongs to no option.
    """
    found: dict[str, list[str]] = {}
    values: list[str] | None = None
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            key = name.replace("-", "_")
            values = found[_ALIASES.get(key, key)] = [value] if equals else []
        elif values is None:
            raise ValueError(f"unrecognized arguments: {word}")
        else:
            values.append(word)
    return {name: _value(given) for name, given in found.items()}


def read_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the command line together with the options of the `--config` file. If
    both give an option, the command line wins.

    The file must hold a JSON object, although SGLang reads any YAML. Raises ValueError if the file
    cannot be read or holds anything else.
    """
    options = {name: value for name, value in given.items() if name != "config"}
    if "config" not in given:
        return options
    try:
        content = json.loads(Path(str(given["config"])).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"argument --config: {error}") from error
    if not isinstance(content, dict):
        raise ValueError("argument --config: expected a JSON object")
    return {name.replace("-", "_"): value for name, value in content.items()} | options


def _value(given: list[str]) -> Any:
    if not given:
        return True
    parsed = [_scalar(text) for text in given]
    return parsed[0] if len(parsed) == 1 else parsed


def _scalar(text: str) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) and not isinstance(value, bool) else text


def resolve(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return all server arguments as SGLang would report them, and the warnings that SGLang would
    log.
    """
    args = {**DEFAULTS, **given}
    args["tokenizer_path"] = args["tokenizer_path"] or args["model_path"]
    args["served_model_name"] = args["served_model_name"] or args["model_path"]
    warnings: list[str] = []
    algorithm = args["speculative_algorithm"]
    if not algorithm:
        return args, warnings
    args["speculative_algorithm"] = "EAGLE" if algorithm == "NEXTN" else algorithm
    if args["max_running_requests"] is None and algorithm in (*_EAGLE_LIKE, "NGRAM"):
        args["max_running_requests"] = _SPECULATIVE_RUNNING_CAP
        warnings.append(
            "Max running requests is reset to 48 for speculative decoding. "
            "You can override this by explicitly setting --max-running-requests."
        )
    if algorithm == "NGRAM":
        _resolve_ngram(args)
    elif algorithm in _EAGLE_LIKE:
        warnings.extend(_resolve_eagle(args))
    return args, warnings


def _resolve_ngram(args: dict[str, Any]) -> None:
    args["speculative_eagle_topk"] = args["speculative_ngram_max_bfs_breadth"]
    args["speculative_num_draft_tokens"] = args["speculative_num_draft_tokens"] or 12
    if args["speculative_num_steps"] is None:
        args["speculative_num_steps"] = (
            args["speculative_num_draft_tokens"] // args["speculative_eagle_topk"]
        )


def _resolve_eagle(args: dict[str, Any]) -> list[str]:
    if args["speculative_draft_model_path"]:
        args["speculative_draft_model_revision"] = (
            args["speculative_draft_model_revision"] or "main"
        )
    if args["speculative_num_steps"] is None:
        args.update(
            speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4
        )
    args["speculative_eagle_topk"] = args["speculative_eagle_topk"] or 1
    wanted = args["speculative_num_steps"] + 1
    if args["speculative_eagle_topk"] == 1 and args["speculative_num_draft_tokens"] != wanted:
        args["speculative_num_draft_tokens"] = wanted
        return [
            "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1"
            " when speculative_eagle_topk == 1"
        ]
    return []


def speculation(args: Mapping[str, Any]) -> Speculation | None:
    """Return the speculation that the resolved arguments set, as the model of time needs it. Return
    None without speculation.
    """
    algorithm = args["speculative_algorithm"]
    if not algorithm:
        return None
    draft_tokens = int(args["speculative_num_draft_tokens"] or 4)
    depth = (
        draft_tokens - 1
        if algorithm == "NGRAM"
        else int(args["speculative_num_steps"] or draft_tokens - 1)
    )
    draft = str(args["speculative_draft_model_path"] or "").lower().replace("-", "")
    return Speculation(
        algorithm=algorithm,
        depth=depth,
        topk=int(args["speculative_eagle_topk"] or 1),
        draft_tokens=draft_tokens,
        matches_draft=not (algorithm == "EAGLE" and "eagle3" in draft),
    )
