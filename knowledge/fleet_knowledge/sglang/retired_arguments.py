"""Lists the options that SGLang retired, the versions in which it did so, and the replacements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet_knowledge.release import VersionRange


@dataclass(frozen=True, slots=True)
class RetiredArgument:
    """A retired option.

    `versions` are those that still accept the option with a warning. `instead` says what to write;
    it is empty if no replacement is needed.
    """

    versions: VersionRange
    instead: str
    source: str


def _rows(source: str, versions: VersionRange, **instead: str) -> dict[str, RetiredArgument]:
    return {name: RetiredArgument(versions, text, source) for name, text in instead.items()}


# Source of each row: the option's own help or its action in sglang/srt/server_args.py (arg_groups
# from 0.5.15) of the named wheels.
RETIRED_ARGUMENTS: Mapping[str, RetiredArgument] = {
    **_rows(
        "0.4.1 server_args.py",
        VersionRange("0.4.1", "0.4.2"),
        enable_overlap_schedule="",
        disable_flashinfer="attention_backend: triton",
        disable_flashinfer_sampling="sampling_backend: pytorch",
        disable_disk_cache="disable_outlines_disk_cache: true",
    ),
    **_rows(
        "0.4.6.post5 server_args.py",
        VersionRange("0.4.6", "0.4.8"),
        enable_flashinfer_mla="attention_backend: flashinfer",
        enable_flashmla="attention_backend: flashmla",
    ),
    **_rows(
        "0.5.1.post3, 0.5.3, 0.5.4 server_args.py",
        VersionRange("0.5.1", "0.5.4"),
        enable_ep_moe="ep_size, with the number that tp_size has",
        enable_deepep_moe="moe_a2a_backend: deepep",
        enable_flashinfer_cutlass_moe="moe_runner_backend: flashinfer_cutlass",
        enable_flashinfer_cutedsl_moe="moe_runner_backend: flashinfer_cutedsl",
        enable_flashinfer_trtllm_moe="moe_runner_backend: flashinfer_trtllm",
        enable_triton_kernel_moe="moe_runner_backend: triton_kernel",
        enable_flashinfer_mxfp4_moe="moe_runner_backend: flashinfer_mxfp4",
    ),
    **_rows(
        "0.5.9 server_args.py",
        VersionRange("0.5.9", "0.5.13"),
        hybrid_kvcache_ratio="swa_full_tokens_ratio",
    ),
    **_rows(
        "0.5.9 server_args.py", VersionRange("0.5.9", "0.5.18"), prefill_round_robin_balance=""
    ),
    **_rows(
        "0.5.10 server_args.py",
        VersionRange("0.5.10", "0.5.18"),
        stream_output="incremental_streaming_output: true",
    ),
    **_rows("0.5.12 server_args.py", VersionRange("0.5.12", "0.5.18"), collect_tokens_histogram=""),
    **_rows(
        "0.5.13 server_args.py",
        VersionRange("0.5.13", "0.5.18"),
        nsa_prefill_backend="dsa_prefill_backend",
        nsa_decode_backend="dsa_decode_backend",
        enable_nsa_prefill_context_parallel="enable_prefill_cp: true",
        nsa_prefill_cp_mode="cp_strategy",
    ),
    **_rows(
        "0.5.14 server_args.py",
        VersionRange("0.5.14", "0.5.18"),
        mamba_scheduler_strategy="mamba_radix_cache_strategy",
        cuda_graph_max_bs="cuda_graph_max_bs_decode",
        cuda_graph_bs="cuda_graph_bs_decode",
        enable_breakable_cuda_graph="cuda_graph_backend_prefill: breakable",
        disable_piecewise_cuda_graph="cuda_graph_backend_prefill: disabled",
        enforce_piecewise_cuda_graph="cuda_graph_backend_prefill: tc_piecewise",
        piecewise_cuda_graph_tokens="cuda_graph_bs_prefill",
        piecewise_cuda_graph_compiler="cuda_graph_tc_compiler",
        piecewise_cuda_graph_max_tokens="cuda_graph_max_bs_prefill",
        enable_dsa_prefill_context_parallel="enable_prefill_cp: true",
        enable_prefill_context_parallel="enable_prefill_cp: true",
        dsa_prefill_cp_mode="cp_strategy",
        prefill_cp_mode="cp_strategy",
    ),
    **_rows(
        "0.5.14, 0.5.23 server_args.py",
        VersionRange("0.5.14"),
        disable_cuda_graph=(
            "cuda_graph_backend_decode: disabled and cuda_graph_backend_prefill: disabled"
        ),
        enable_flashinfer_allreduce_fusion="flashinfer_allreduce_fusion_backend: auto",
    ),
    **_rows(
        "0.5.18 server_args.py",
        VersionRange("0.5.18", "0.5.18"),
        enable_gdn_replayssm_spec="enable_linear_replayssm_spec: true",
    ),
    **_rows(
        "0.5.18 server_args.py",
        VersionRange("0.5.18", "0.5.18"),
        enable_expert_distribution_metrics="expert_balancedness_report_mode",
    ),
    **_rows(
        "0.5.23 server_args.py",
        VersionRange("0.5.23"),
        enable_dp_attention="attn_dp_size, with the number that dp_size had",
        monokernel_backend="enable_amd_monokernel: true",
    ),
}
