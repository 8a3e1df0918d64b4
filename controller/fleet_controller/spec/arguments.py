"""Owns how server arguments are spelled: from what people write to SGLang's own names; judges no value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any

# Other spellings of one option that SGLang itself takes. Version range: 0.4.1 - 0.5.23 for tp, dp, pp and ep; the others 0.5.23.
ALIASES = {
    "attention_context_parallel_size": "attn_cp_size",
    "attention_data_parallel_size": "attn_dp_size",
    "context_bucket": "cuda_graph_prefill_max_context",
    "data_parallel_size": "dp_size",
    "decode_context_parallel_size": "dcp_size",
    "dp": "dp_size",
    "ep": "ep_size",
    "expert_parallel_size": "ep_size",
    "grpc_http_sidecar_port": "smg_http_sidecar_port",
    "hierarchical_sparse_attention_extra_config": "hisparse_config",
    "model": "model_path",
    "moe_data_parallel_size": "moe_dp_size",
    "nccl_init_addr": "dist_init_addr",
    "pipeline_parallel_size": "pp_size",
    "pp": "pp_size",
    "speculative_draft_model": "speculative_draft_model_path",
    "tensor_parallel_size": "tp_size",
    "tp": "tp_size",
}
KNOWN_VERSION = "0.5.23"


@dataclass(frozen=True, slots=True)
class Spelling:
    """How an argument was read. `shortened`: it was completed to the one known name that it begins."""

    name: str
    known: bool
    shortened: bool = False


@cache
def known_arguments() -> Mapping[str, bool]:
    """Names that SGLang 0.5.23 takes → whether a `--no-` form exists too."""
    lines = files(__package__).joinpath("sglang_arguments.txt").read_text(encoding="utf-8").splitlines()
    entries = (line.split() for line in lines if line and not line.startswith("#"))
    return {entry[0]: len(entry) > 1 for entry in entries}


def spell(written: str) -> Spelling:
    """SGLang's own name for what was written: dashes become underscores, aliases their option, a unique beginning the whole."""
    name = written.strip().lstrip("-").replace("-", "_")
    name = ALIASES.get(name, name)
    if name in known_arguments():
        return Spelling(name, known=True)
    begun = [known for known in known_arguments() if known.startswith(name)] if len(name) > 3 else []
    return Spelling(begun[0], known=True, shortened=True) if len(begun) == 1 else Spelling(name, known=False)


def nearest_argument(name: str) -> str:
    """The known argument nearest to `name`, or an empty text."""
    candidates = [*known_arguments(), *ALIASES]
    found = get_close_matches(name, candidates, n=1, cutoff=0.75) if len(name) <= 80 else []
    return ALIASES.get(found[0], found[0]) if found else ""


def normalise(written: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by SGLang's names, values as the engine takes them: a mapping as JSON text, a flag that is off as None (absent)."""
    return {(name := spell(key).name): _value(name, value) for key, value in written.items()}


def _value(name: str, value: Any) -> Any:
    if value is False:
        return False if known_arguments().get(name) else None
    if isinstance(value, list | tuple):
        return [_text(item) for item in value]
    return _text(value)


def _text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list | tuple) else value
