"""Checks SGLang's parallel sizes: how many GPUs they need, and which sizes can be combined, by
version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fleet_knowledge.release import VersionRange
from fleet_knowledge.server_configuration import (
    ERROR,
    INFO,
    WARNING,
    RuleFinding,
    ServerConfiguration,
)
from fleet_knowledge.sglang_releases import Certainty, certainty_of

# Options that set ep_size to tp_size, whatever the job sets (0.4.1 - 0.5.9 server_args.py).
_EP_IS_TP: tuple[tuple[str, Any], ...] = (
    ("moe_a2a_backend", "deepep"),
    ("moe_a2a_backend", "mooncake"),
    ("enable_ep_moe", True),
    ("enable_deepep_moe", True),
)
_SIZES = (
    *("tp_size", "pp_size", "dp_size", "ep_size"),
    *("attn_dp_size", "moe_dp_size", "attn_cp_size", "dcp_size"),
)


def count_ranks(args: Mapping[str, Any]) -> int:
    """Return how many processes of the server use a GPU.

    The number is tp_size × pp_size × the replicas of data parallelism. Data-parallel attention adds
    no processes.
    """
    config = ServerConfiguration(args)
    return config.size("tp_size") * config.size("pp_size") * count_replicas(config)


def count_replicas(config: ServerConfiguration) -> int:
    """Return how many copies of the whole model data parallelism makes."""
    return 1 if config.is_on("enable_dp_attention") else config.size("dp_size")


def is_on_cpu(args: Mapping[str, Any]) -> bool:
    """Return whether the arguments are for a server without GPUs."""
    return str(args.get("device", "")).lower() == "cpu"


def count_needed_gpus(args: Mapping[str, Any]) -> int:
    """Return how many GPUs a launch needs; 0 on a CPU."""
    return 0 if is_on_cpu(args) else count_ranks(args)


def exchanges_over_nccl(args: Mapping[str, Any]) -> bool:
    """Return whether ranks exchange tensors through NCCL.

    They do if one copy of the model runs on several GPUs. Replicas exchange no tensors.
    """
    config = ServerConfiguration(args)
    return not is_on_cpu(args) and config.size("tp_size") * config.size("pp_size") > 1


def apply_parallelism_rules(config: ServerConfiguration) -> Iterator[RuleFinding]:
    """Yield the findings about the parallel sizes of one configuration."""
    for rule in _RULES:
        yield from rule(config)


def _sizes(config: ServerConfiguration) -> Iterator[RuleFinding]:
    for name in _SIZES:
        value = config.args.get(name)
        if value is not None and (config.number(name) or 0) < 1:
            yield RuleFinding(
                "bad_parallel_size",
                ERROR,
                f"args.{name}",
                f"`{name}` is {value!r}, but it must be a whole number above 0",
                "write 1 or more",
            )


def _gpus(config: ServerConfiguration) -> Iterator[RuleFinding]:
    if config.gpus is None:
        return
    needed, here = count_needed_gpus(config.args), config.gpus * config.nodes
    if needed > here:
        yield _too_few_gpus(config, config.gpus, needed)
    elif needed < here and is_on_cpu(config.args):
        yield RuleFinding(
            "gpus_mismatch",
            WARNING,
            "gpus",
            f"gpus is {config.gpus}, but `device: cpu` uses no GPUs",
            "write gpus: 0",
        )
    elif needed < here:
        sizes = _product(config)
        message = (
            f"gpus is {config.gpus}, but the arguments use only {needed} ({sizes}): the other GPUs"
            " stay idle"
        )
        yield RuleFinding(
            "gpus_mismatch", WARNING, "gpus", message, f"write gpus: {needed}, or leave gpus out"
        )


def _too_few_gpus(config: ServerConfiguration, gpus: int, needed: int) -> RuleFinding:
    hosts = f" on each of {config.nodes} hosts" if config.nodes > 1 else ""
    sizes, on_each_host = _product(config), -(-needed // config.nodes)
    message = (
        f"gpus is {gpus}{hosts}, but the arguments need {needed} ({sizes}), one GPU per rank: the"
        " launch fails"
    )
    hint = "write gpus: 0 with device: cpu in args for a CPU server, or " if gpus == 0 else ""
    hint += f"write gpus: {on_each_host}, or smaller sizes"
    one_copy = config.size("tp_size") * config.size("pp_size")
    if count_replicas(config) > 1 and one_copy <= gpus * config.nodes and gpus > 0:
        hint += (
            "; for data-parallel attention, whose ranks share the GPUs, write"
            " enable_dp_attention: true"
        )
    return RuleFinding("too_few_gpus", ERROR, "gpus", message, hint)


def _product(config: ServerConfiguration) -> str:
    parts = [
        f"tp_size {config.size('tp_size')}",
        f"pp_size {config.size('pp_size')}",
        f"dp_size {count_replicas(config)}",
    ]
    return " × ".join(part for part in parts if not part.endswith(" 1")) or "tp_size 1"


def _dp_attention(config: ServerConfiguration) -> Iterator[RuleFinding]:
    tp, dp, groups = config.size("tp_size"), config.size("dp_size"), config.size("attn_dp_size")
    name = "attn_dp_size" if groups > 1 else "dp_size"
    width = groups if groups > 1 else dp if config.is_on("enable_dp_attention") else 1
    if tp % width:
        message = (
            f"tp_size {tp} is not a multiple of `{name}` {width}: SGLang stops with an"
            " AssertionError"
        )
        yield RuleFinding(
            "parallel_sizes_disagree",
            ERROR,
            f"args.{name}",
            message,
            f"choose a `{name}` that divides {tp}",
        )
    if groups > 1 and dp > 1 and not config.is_on("enable_dp_attention"):
        message = f"SGLang rejects dp_size {dp} together with attn_dp_size {groups}"
        yield RuleFinding(
            "parallel_sizes_disagree",
            ERROR,
            "args.attn_dp_size",
            message,
            "keep only one of the two arguments",
        )
    if config.is_on("enable_dp_attention") and max(dp, groups) == 1:
        message = "`enable_dp_attention` has no effect with dp_size 1: SGLang turns it off"
        yield RuleFinding(
            "argument_without_effect",
            WARNING,
            "args.enable_dp_attention",
            message,
            "set dp_size above 1, or leave enable_dp_attention out",
        )


def _experts(config: ServerConfiguration) -> Iterator[RuleFinding]:
    tp, ep = config.size("tp_size"), config.size("ep_size")
    forced = next(
        (f"{name}: {value}" for name, value in _EP_IS_TP if config.args.get(name) == value), None
    )
    if forced and config.args.get("ep_size") is not None and ep != tp:
        message = f"SGLang runs ep_size {tp}, not {ep}: `{forced}` sets ep_size to tp_size"
        yield RuleFinding(
            "argument_adjusted",
            WARNING,
            "args.ep_size",
            message,
            f"write ep_size: {tp}, or leave ep_size out",
        )
    elif not forced and tp % ep:
        message = (
            f"tp_size {tp} is not a multiple of ep_size {ep}: the tensor-parallel group must be"
            " divided into expert groups of equal size"
        )
        yield RuleFinding(
            "parallel_sizes_disagree",
            ERROR,
            "args.ep_size",
            message,
            f"choose an ep_size that divides {tp}",
        )


def _nodes(config: ServerConfiguration) -> Iterator[RuleFinding]:
    if config.nodes <= 1:
        return
    product = config.size("tp_size") * config.size("pp_size")
    if product % config.nodes:
        message = (
            f"tp_size × pp_size is {product}, which is not a multiple of {config.nodes} hosts:"
            " SGLang stops with an AssertionError"
        )
        yield RuleFinding(
            "parallel_sizes_disagree",
            ERROR,
            "args.tp_size",
            message,
            f"choose sizes whose product is a multiple of {config.nodes}",
        )
    if count_replicas(config) > 1:
        message = "data-parallel replicas cannot span hosts: SGLang stops with an AssertionError"
        yield RuleFinding(
            "parallel_sizes_disagree",
            ERROR,
            "args.dp_size",
            message,
            "use data-parallel attention, or one host",
        )


def _gpu_ids(config: ServerConfiguration) -> Iterator[RuleFinding]:
    base, step = config.number("base_gpu_id", 0) or 0, config.number("gpu_id_step", 1) or 1
    if is_on_cpu(config.args) or (base == 0 and step == 1):
        return
    local = max(count_needed_gpus(config.args) // config.nodes, 1)
    last = base + (local - 1) * step
    have = count_needed_gpus(config.args) if config.gpus is None else config.gpus
    at = "args.base_gpu_id" if base else "args.gpu_id_step"
    if last >= have:
        message = (
            f"the last rank uses GPU {last}, but the launch sees only its own {have} GPUs, numbered"
            " from 0"
        )
        yield RuleFinding(
            "gpu_out_of_range", ERROR, at, message, "leave base_gpu_id and gpu_id_step out"
        )


def _pipeline(config: ServerConfiguration) -> Iterator[RuleFinding]:
    if (
        config.size("pp_size") > 1
        and certainty_of(VersionRange("", "0.4.5"), config.release) == Certainty.YES
    ):
        message = f"SGLang {config.release} has no pipeline parallelism: 0.4.6 added it"
        yield RuleFinding(
            "parallel_sizes_disagree",
            ERROR,
            "args.pp_size",
            message,
            "use tp_size instead, or a newer SGLang",
        )
    if config.size("pp_size") > 1 and config.is_on("enable_mixed_chunk"):
        severity = (
            WARNING
            if config.release is None
            else ERROR
            if certainty_of(VersionRange("", "0.5.9"), config.release)
            else INFO
        )
        message = "up to SGLang 0.5.9, `enable_mixed_chunk` excludes pp_size above 1"
        yield RuleFinding(
            "parallel_sizes_disagree",
            severity,
            "args.enable_mixed_chunk",
            message,
            "leave one of the two arguments out",
        )


_RULES: tuple[Callable[[ServerConfiguration], Iterator[RuleFinding]], ...] = (
    _sizes,
    _gpus,
    _dp_attention,
    _experts,
    _nodes,
    _gpu_ids,
    _pipeline,
)
