"""Owns how a job's engine arguments become words of SGLang's command line. Pure; checks no value
and starts nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import Gang

# Options whose `--no-` form exists (argparse.BooleanOptionalAction), from `launch_server --help` of
# 0.5.23. For any other
# option False is its default and says nothing, so it is left out.
NEGATABLE = frozenset({
    "dcp_replicate_q_proj", "dllm_fdfo", "enable_decoder_swa_bounded_replay", "enable_dsa_fused_indexer", "enable_fused_qk_norm_rope",
    "enable_tf32_matmul", "enable_tp_lm_head_all_to_all", "experts_shared_outer_loras", "lora_strict_loading", "mm_enable_dp_encoder",
    "ple_offload_embedding", "speculative_enable_w4a4_mxfp4_megamoe",
})  # fmt: skip


_NUMBER = re.compile(r"-\d+|-\d*\.\d+")  # what argparse takes for a number


def to_argv(args: Mapping[str, Any]) -> tuple[str, ...]:
    """The command line of all arguments, in the job's order."""
    return tuple(word for name, value in args.items() for word in option_argv(name, value))


def option_argv(name: str, value: Any) -> tuple[str, ...]:
    """One argument: a flag alone for True, `--no-…` or nothing for False, nothing for None, one for
    each entry of a list, a map as JSON.
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
            message = (
                f"engine.args.{name}: {options[0][:60]!r} would be read as an option of its own"
            )
            raise ConfigError(message, "write it as the argument that it is")
        return (flag, *map(str, value))
    text = json.dumps(dict(value)) if isinstance(value, Mapping) else str(value)
    return (
        (f"{flag}={text}",) if _is_option(text) else (flag, text)
    )  # else argparse reads it as an option


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.fullmatch(word)


def gang_argv(gang: Gang) -> tuple[str, ...]:
    """This host's place in a server over several; none for a server on one. Raises ConfigError
    without a place to meet.
    """
    if gang.nodes < 2:
        return ()
    if not gang.init_address:
        raise ConfigError(
            f"a server over {gang.nodes} hosts needs the address at which they meet",
            "give all hosts of a gang the same one",
        )
    return (
        "--nnodes",
        str(gang.nodes),
        "--node-rank",
        str(gang.rank),
        "--dist-init-addr",
        gang.init_address,
    )


def expand_home_paths(args: Mapping[str, Any], home: str) -> dict[str, Any]:
    """The arguments with a leading `~/` of each path replaced by `home`: no shell stands between
    the job and the server.
    """
    return {
        name: expand_home(value, home) if name.endswith("_path") else value
        for name, value in args.items()
    }


def expand_home(path: Any, home: str) -> Any:
    """`path` with a leading `~/` replaced by `home`; anything else as it is."""
    return home.rstrip("/") + path[1:] if isinstance(path, str) and path.startswith("~/") else path
