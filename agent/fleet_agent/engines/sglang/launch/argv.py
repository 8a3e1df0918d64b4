"""Turns a job's engine arguments into words of SGLang's command line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import Gang

# Options that have a `--no-` form (argparse.BooleanOptionalAction), from `launch_server --help` of
# 0.5.23. For any other option False is the default, so the option is left out.
NEGATABLE = frozenset({
    "dcp_replicate_q_proj", "dllm_fdfo", "enable_decoder_swa_bounded_replay",
    "enable_dsa_fused_indexer", "enable_fused_qk_norm_rope", "enable_tf32_matmul",
    "enable_tp_lm_head_all_to_all", "experts_shared_outer_loras", "lora_strict_loading",
    "mm_enable_dp_encoder", "ple_offload_embedding", "speculative_enable_w4a4_mxfp4_megamoe",
})  # fmt: skip


_NUMBER = re.compile(r"-\d+|-\d*\.\d+")  # what argparse accepts as a negative number


def to_argv(args: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the words of all arguments, in the job's order."""
    return tuple(word for name, value in args.items() for word in option_argv(name, value))


def option_argv(name: str, value: Any) -> tuple[str, ...]:
    """Return the words that pass one argument to SGLang.

    True: the flag alone.
    False: `--no-…` if SGLang has that option, else nothing.
    None: nothing.
    A list: the flag, then one word for each entry.
    A map: its JSON.

    Raises ConfigError for a list entry that argparse would read as an option.
    """
    flag = "--" + name.replace("_", "-")
    if value is True:
        return (flag,)
    if value is False:
        return ("--no-" + flag[2:],) if name in NEGATABLE else ()
    if value is None:
        return ()
    if isinstance(value, list | tuple):
        if entry := next((text for text in map(str, value) if _is_option(text)), ""):
            message = f"engine.args.{name}: SGLang would read {entry[:60]!r} as another option"
            raise ConfigError(message, "write this entry as a separate argument in engine.args")
        return (flag, *map(str, value))
    text = json.dumps(dict(value)) if isinstance(value, Mapping) else str(value)
    # argparse would read a separate word that starts with `-` as an option
    return (f"{flag}={text}",) if _is_option(text) else (flag, text)


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.fullmatch(word)


def gang_argv(gang: Gang) -> tuple[str, ...]:
    """Return the arguments that make this server a node of a gang: the number of nodes, its own
    rank, and the rendezvous address. Return nothing for a server on one host.

    Raises ConfigError if the gang has no rendezvous address.
    """
    if gang.nodes < 2:
        return ()
    if not gang.init_address:
        raise ConfigError(
            f"a server over {gang.nodes} hosts needs a rendezvous address, and the trial has none",
            "set the same init_address for all hosts of the gang",
        )
    return (
        *("--nnodes", str(gang.nodes), "--node-rank", str(gang.rank)),
        *("--dist-init-addr", gang.init_address),
    )


def expand_home_paths(args: Mapping[str, Any], home: str) -> dict[str, Any]:
    """Return the arguments, with `home` in place of the leading `~` of each path.

    No shell runs between the job and the server, so nothing else expands a `~`.
    """
    return {
        name: expand_home(value, home) if name.endswith("_path") else value
        for name, value in args.items()
    }


def expand_home(path: Any, home: str) -> Any:
    """Return `path` with `home` in place of a leading `~`. Return any other value unchanged."""
    return home.rstrip("/") + path[1:] if isinstance(path, str) and path.startswith("~/") else path
