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
    """Return the command line of all arguments, in the job's order."""
    return tuple(word for name, value in args.items() for word in option_argv(name, value))


def option_argv(name: str, value: Any) -> tuple[str, ...]:
    """Return the words of one argument.

    True gives the flag alone, False gives `--no-…` or nothing, None gives nothing, a list gives one
    word for each entry, and a map is passed as JSON. Raises ConfigError for a list entry that
    argparse would read as an option.
    """
    flag = "--" + name.replace("_", "-")
    if value is True:
        return (flag,)
    if value is False:
        return ("--no-" + flag[2:],) if name in NEGATABLE else ()
    if value is None:
        return ()
    if isinstance(value, list | tuple):
        if options := [entry for entry in map(str, value) if _is_option(entry)]:
            message = f"engine.args.{name}: SGLang would read {options[0][:60]!r} as another option"
            raise ConfigError(message, "write it as an argument of its own in engine.args")
        return (flag, *map(str, value))
    text = json.dumps(dict(value)) if isinstance(value, Mapping) else str(value)
    # argparse would read a separate word that starts with `-` as an option
    return (f"{flag}={text}",) if _is_option(text) else (flag, text)


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.fullmatch(word)


def gang_argv(gang: Gang) -> tuple[str, ...]:
    """Return the arguments for this host's part of a server over several hosts; empty for one host.

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
    """Return the arguments with a leading `~/` of each path replaced by `home`.

    Between the job and the server no shell runs that would expand it.
    """
    return {
        name: expand_home(value, home) if name.endswith("_path") else value
        for name, value in args.items()
    }


def expand_home(path: Any, home: str) -> Any:
    """Return `path` with a leading `~/` replaced by `home`; return any other value unchanged."""
    return home.rstrip("/") + path[1:] if isinstance(path, str) and path.startswith("~/") else path
