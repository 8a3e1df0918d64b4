"""Owns the NCCL variables that SGLang sets itself, by version: always, or only when the job leaves them unset. Reads no job.

Read from the packages of SGLang 0.4.1 - 0.5.23: server.py and entrypoints/engine.py (`_set_envs_and_config`), server_args.py, arg_groups/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_knowledge.release import Between, Release


@dataclass(frozen=True, slots=True)
class Override:
    """SGLang writes `value` to `variable`. `always`: over the job's value too; `needs`: only with this argument; `unless`: not with it."""

    variable: str
    value: str
    versions: Between
    always: bool
    needs: str = ""
    unless: str = ""
    tp_at_least: int = 1
    source: str = "entrypoints/engine.py"


_FORCED = Between("", "0.5.4")
_KEPT = Between("0.5.4.post3")
_DETERMINISTIC = "enable_deterministic_inference"
OVERRIDES = (
    Override("NCCL_CUMEM_ENABLE", "0", _FORCED, always=True, unless="enable_symm_mem"),
    Override("NCCL_CUMEM_ENABLE", "1", Between("0.5.1"), always=True, needs="enable_symm_mem"),
    Override("NCCL_CUMEM_ENABLE", "0", _KEPT, always=False),
    Override("NCCL_NVLS_ENABLE", "0", Between("", "0.4.1"), always=True),
    Override("NCCL_NVLS_ENABLE", "1", Between("0.4.3"), always=True, needs="enable_nccl_nvls"),
    Override("NCCL_NVLS_ENABLE", "0", _FORCED, always=True, unless="enable_symm_mem"),
    Override("NCCL_NVLS_ENABLE", "1", _KEPT, always=True, needs="enable_symm_mem"),
    Override("NCCL_NVLS_ENABLE", "0", _KEPT, always=False),
    Override(
        "NCCL_ALGO",
        "allreduce:tree",
        Between("0.5.3"),
        always=True,
        needs=_DETERMINISTIC,
        tp_at_least=2,
        source="server_args.py, arg_groups",
    ),
    Override(
        "NCCL_MIN_NCHANNELS", "8", Between("0.5.18"), always=True, needs=_DETERMINISTIC, tp_at_least=2, source="server_args.py, arg_groups"
    ),
    Override(
        "NCCL_MAX_NCHANNELS", "8", Between("0.5.18"), always=True, needs=_DETERMINISTIC, tp_at_least=2, source="server_args.py, arg_groups"
    ),
)


def overrides_of(variable: str, args: Mapping[str, Any], release: Release | None) -> Iterator[Override]:
    """The rows that apply to `variable` for a server with `args` in `release`; every version's when that is not known. Nearest cause first."""
    for row in OVERRIDES:
        if row.variable == variable and row.versions.holds(release) and _applies(row, args):
            yield row


def _applies(row: Override, args: Mapping[str, Any]) -> bool:
    if row.needs and not args.get(row.needs):
        return False
    if row.unless and args.get(row.unless):
        return False
    tp_size = args.get("tp_size", 1)
    return not isinstance(tp_size, int) or tp_size >= row.tp_at_least


def unset_value(variable: str, args: Mapping[str, Any], release: Release | None) -> Override | None:
    """What the server has when the job leaves `variable` unset, as SGLang sets it; None when it sets nothing."""
    return next(overrides_of(variable, args, release), None)
