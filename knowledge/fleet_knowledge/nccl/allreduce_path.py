"""Determines whether NCCL performs a server's all-reduce, or something that SGLang tries before
NCCL.

The order of the attempts is that of `GroupCoordinator.all_reduce` in
srt/distributed/parallel_state.py, read in SGLang 0.4.6 - 0.5.23.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fleet_knowledge.release import Release, VersionRange

MIB = 1 << 20
_VERSIONS_READ = VersionRange("0.4.6", "0.5.23")
CUSTOM_LIMIT_BYTES = 8 * MIB
"""Custom all-reduce takes smaller messages in every version. The limit is 8 MiB up to 0.5.10; from
0.5.12 it is larger and depends on the GPU and the number of ranks."""
MAX_HIDDEN_SIZE = 16_384
"""The largest of known open models: assumed where the model's own size is unknown."""
_CUSTOM_WORLDS = (2, 4, 6, 8)
_BYTES_PER_VALUE = 2


class NcclUse(Enum):
    """The possible answers to whether the all-reduce of a decode step reaches NCCL."""

    REACHES = "reaches"
    BYPASSED = "bypassed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class AllReduceSetup:
    """The settings that decide what performs the all-reduce.

    `args` uses SGLang's names. `topology` is `nvlink`, `pcie` or `unknown`. `hidden_size` is that
    of the model. `step_tokens` counts the tokens of one decode step: running requests x draft
    tokens. Both sizes are 0 if unknown.
    """

    args: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    topology: str = "unknown"
    hidden_size: int = 0
    step_tokens: int = 0
    release: Release | None = None

    def is_on(self, name: str) -> bool:
        """Return whether a flag is set."""
        return self.args.get(name) not in (None, False, 0, "", "false", "False")

    def size(self, name: str) -> int:
        """Return the size in an argument: 1 if it is not set, 0 if it is not a number."""
        value = self.args.get(name, 1)
        return (
            int(value)
            if isinstance(value, int | str) and str(value).isdecimal() and len(str(value)) < 10
            else 0
        )

    @property
    def step_bytes(self) -> int:
        """Return an upper limit for the bytes of one all-reduce of a decode step; 0 if unknown."""
        return self.step_tokens * (self.hidden_size or MAX_HIDDEN_SIZE) * _BYTES_PER_VALUE


@dataclass(frozen=True, slots=True)
class AllReducePath:
    """The answer to whether NCCL performs the all-reduce, with its reason.

    `performed_by` names what performs the all-reduce instead of NCCL; it is empty for NCCL.
    `versions` are the versions of SGLang that were read.
    """

    answer: NcclUse
    performed_by: str
    reason: str
    versions: VersionRange = _VERSIONS_READ


def find_all_reduce_path(server: AllReduceSetup) -> AllReducePath:
    """Return what performs the all-reduce of a decode step.

    Prefill chunks are larger and can still reach NCCL; `reason` says from which size on.
    """
    return next(
        (path for attempt in _ATTEMPTS for path in attempt(server)),
        _reaches_nccl("nothing that SGLang tries before NCCL applies"),
    )


def _reaches_nccl(reason: str) -> AllReducePath:
    return AllReducePath(NcclUse.REACHES, "", reason)


def _unknown(
    performed_by: str, reason: str, versions: VersionRange = _VERSIONS_READ
) -> AllReducePath:
    return AllReducePath(NcclUse.UNKNOWN, performed_by, reason, versions)


def _single_gpu(server: AllReduceSetup) -> Iterator[AllReducePath]:
    world = server.size("tp_size")
    if world == 0:
        yield _unknown("", "the tensor-parallel size is unknown")
    elif world == 1 and server.size("pp_size") == 1 and server.size("dp_size") <= 1:
        yield AllReducePath(
            NcclUse.BYPASSED,
            "no all-reduce",
            "one GPU per replica (tp_size 1): there is nothing to reduce",
            VersionRange("0.4.1", "0.5.23"),
        )
    elif world == 1:
        yield _unknown(
            "",
            "tp_size 1 has no all-reduce, but pipeline or data parallel ranks exchange other "
            "messages over NCCL",
        )


def _other_collectives(server: AllReduceSetup) -> Iterator[AllReducePath]:
    if server.is_on("enable_dp_attention") or server.args.get("moe_a2a_backend") not in (
        None,
        "none",
    ):
        yield _unknown(
            "",
            "data-parallel attention and expert parallelism use gathers and scatters as well as "
            "all-reduce, and these reach NCCL",
        )


def _symmetric(server: AllReduceSetup) -> Iterator[AllReducePath]:
    if server.is_on("enable_symm_mem"):
        reason = (
            "with --enable-symm-mem NCCL runs symmetric kernels on registered buffers, for which "
            "no algorithm or protocol is chosen"
        )
        yield _unknown("symmetric memory", reason, VersionRange("0.5.1", "0.5.23"))


def _deterministic(server: AllReduceSetup) -> Iterator[AllReducePath]:
    if server.is_on("enable_deterministic_inference"):
        yield _reaches_nccl(
            "deterministic inference disables custom all-reduce and sets NCCL_ALGO=allreduce:tree"
        )


def _several_hosts(server: AllReduceSetup) -> Iterator[AllReducePath]:
    if server.size("nnodes") > 1:
        yield _reaches_nccl(
            "ranks on several hosts: custom all-reduce only works inside one host (or, from "
            "0.5.23, one NVLink domain over several hosts)"
        )


def _custom(server: AllReduceSetup) -> Iterator[AllReducePath]:
    world = server.size("tp_size")
    if (
        server.is_on("disable_custom_all_reduce")
        or world not in _CUSTOM_WORLDS
        or (server.topology == "pcie" and world > 2)
    ):
        return
    if server.step_bytes >= CUSTOM_LIMIT_BYTES:
        reason = (
            f"a step reduces up to {server.step_bytes / MIB:.0f} MiB, and custom all-reduce takes "
            "messages below 8 MiB (larger ones from 0.5.12)"
        )
        yield _unknown("custom all-reduce", reason)
    elif server.topology == "nvlink" or (world == 2 and server.topology == "pcie"):
        yield AllReducePath(NcclUse.BYPASSED, "custom all-reduce", _custom_reason(server, world))
    else:
        where = (
            f"all {world} GPUs have NVLink to each other"
            if world > 2
            else "the two GPUs can access each other's memory"
        )
        reason = (
            f"where {where}, SGLang's custom all-reduce takes messages below 8 MiB; "
            "the topology is unknown"
        )
        yield _unknown("custom all-reduce", reason)


def _custom_reason(server: AllReduceSetup, world: int) -> str:
    joined = (
        "two GPUs that access each other's memory" if world == 2 else f"{world} GPUs with NVLink"
    )
    size = (
        f"{server.step_bytes / 1024:.0f} KiB per step"
        if server.hidden_size and server.step_tokens
        else "decode steps are far smaller"
    )
    first = CUSTOM_LIMIT_BYTES // ((server.hidden_size or MAX_HIDDEN_SIZE) * _BYTES_PER_VALUE)
    prefill = (
        f"only prefill chunks of {first} tokens or more can reach NCCL"
        if server.hidden_size
        else "only long prefill chunks can reach NCCL"
    )
    return f"{joined} on one host use SGLang's custom all-reduce below 8 MiB ({size}); {prefill}"


def _mscclpp(server: AllReduceSetup) -> Iterator[AllReducePath]:
    if server.is_on("enable_mscclpp") and server.size("tp_size") in (4, 8, 16):
        yield _unknown(
            "mscclpp",
            "--enable-mscclpp takes messages of some sizes",
            VersionRange("0.4.9", "0.5.23"),
        )


def _torch_symmetric(server: AllReduceSetup) -> Iterator[AllReducePath]:
    if server.is_on("enable_torch_symm_mem") and server.size("tp_size") in _CUSTOM_WORLDS:
        reason = (
            "--enable-torch-symm-mem takes messages below 64 MiB (128 MiB on 6 and 8 GPUs) on "
            "Hopper and Blackwell"
        )
        yield _unknown("torch symmetric memory", reason, VersionRange("0.5.3", "0.5.23"))


def _pcie_ipc(server: AllReduceSetup) -> Iterator[AllReducePath]:
    if server.env.get("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "").strip().lower() in (
        "1",
        "true",
        "yes",
    ):
        reason = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE gives decode's messages to FlashInfer's kernels"
        yield _unknown("FlashInfer PCIe all-reduce", reason, VersionRange("0.5.23", "0.5.23"))


def _fusion(server: AllReduceSetup) -> Iterator[AllReducePath]:
    backend = server.args.get("flashinfer_allreduce_fusion_backend")
    if server.is_on("enable_flashinfer_allreduce_fusion") or backend not in (None, "none"):
        reason = (
            "FlashInfer fuses the all-reduce of a layer with its normalisation for small messages"
        )
        yield _unknown("FlashInfer all-reduce fusion", reason, VersionRange("0.4.9", "0.5.23"))


def _remaining_cases(server: AllReduceSetup) -> Iterator[AllReducePath]:
    if server.is_on("disable_custom_all_reduce"):
        yield _reaches_nccl("--disable-custom-all-reduce leaves it to NCCL")
    elif server.topology == "pcie" and server.size("tp_size") > 2:
        yield _reaches_nccl(
            "SGLang disables its custom all-reduce on more than two GPUs without NVLink, and "
            "logs it"
        )
    elif server.size("tp_size") not in _CUSTOM_WORLDS:
        reason = "custom all-reduce takes 2, 4, 6 or 8 ranks (from 0.5.12 also 3, 5, 7)"
        yield (
            _unknown("custom all-reduce", reason)
            if server.size("tp_size") in (3, 5, 7)
            else _reaches_nccl(reason)
        )


_ATTEMPTS = (
    _single_gpu, _other_collectives, _symmetric, _deterministic, _several_hosts, _custom, _mscclpp,
    _torch_symmetric, _pcie_ipc, _fusion, _remaining_cases,
)  # fmt: skip
