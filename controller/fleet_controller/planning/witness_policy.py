"""Decides which variants get a witness: a launch before the measured ones that only shows what NCCL
does.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleet_controller.core.job import Job
from fleet_protos.trial_types import EngineKind, EngineSpec

_PREFIXES = ("NCCL_", "RCCL_", "MSCCL")
# Arguments of server_args.py 0.4.1 - 0.5.23 that choose how collectives are carried out.
_ARGUMENTS = frozenset(
    {
        "disable_custom_all_reduce",
        "enable_custom_all_reduce_v2",
        "enable_deterministic_inference",
        "enable_dp_attention",
        "enable_flashinfer_allreduce_fusion",
        "enable_mscclpp",
        "enable_nccl_nvls",
        "enable_symm_mem",
        "enable_torch_symm_mem",
        "enable_two_batch_overlap",
        "moe_a2a_backend",
    }
)
_ENOUGH_GPUS = 2  # a single GPU does not communicate


def needs_witness(job: Job, engine: EngineSpec) -> bool:
    """Return whether a variant with this engine needs a witness.

    The proof mode `witness` means always; `timed` and `off` mean never. `auto` means that the
    variant uses NCCL and the job sets something that affects communication.
    """
    if engine.kind is EngineKind.EXTERNAL or engine.proof in ("timed", "off"):
        return False
    if engine.proof == "witness":
        return True
    return (
        engine.kind is EngineKind.SGLANG
        and engine.gpus >= _ENOUGH_GPUS
        and touches_communication(job)
    )


def touches_communication(job: Job) -> bool:
    """Return whether the job sets or varies a variable or an argument that affects how GPUs
    communicate.
    """
    levels = [level for levels in job.factors.values() for level in levels.values()]
    return _names_any(job.engine.env, job.engine.args) or any(
        _names_any(level.env, level.args) for level in levels
    )


def _names_any(variables: Iterable[str], arguments: Iterable[str]) -> bool:
    return any(name.startswith(_PREFIXES) for name in variables) or not _ARGUMENTS.isdisjoint(
        arguments
    )
