"""Owns what a log tells beside failures: warnings worth acting on, and facts of the server. Chooses
no failure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet_knowledge.release import VersionRange

INFO, WARNING = "info", "warning"
_JIT_HINT = (
    "Warm the server up with the shapes of the workload before measuring (or precompile: python -m sglang.compile_deep_gemm); drop this"
    " run."
)
_AR_HINT = "Record custom all-reduce on or off per host: with and without it hosts run different code, so compare like with like."


@dataclass(frozen=True, slots=True)
class WarningPattern:
    """One wording worth a warning. `reason` tells apart wordings of one code; named groups of
    `words` become details.
    """

    code: str
    severity: str
    pattern: re.Pattern[str]
    message: str
    hint: str
    source: str
    reason: str = ""
    serving_only: bool = False
    versions: VersionRange = field(default_factory=VersionRange)


def _warning_pattern(
    code: str, severity: str, regex: str, message: str, hint: str, source: str, **more: Any
) -> WarningPattern:
    return WarningPattern(code, severity, re.compile(regex), message, hint, source, **more)


WARNING_PATTERNS = (
    _warning_pattern(
        "custom_all_reduce_off",
        INFO,
        r"Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs",
        "custom all-reduce is off: more than two GPUs joined by PCIe only",
        _AR_HINT,
        "custom_all_reduce.py",
        reason="pcie_only",
    ),
    _warning_pattern(
        "custom_all_reduce_off",
        WARNING,
        r"Setup Custom allreduce failed with (?P<error>.*?)\. To silence",
        "custom all-reduce is off: setting it up failed",
        _AR_HINT,
        "custom_all_reduce.py",
        reason="setup_failed",
    ),
    _warning_pattern(
        "custom_all_reduce_off",
        INFO,
        r"Custom allreduce is disabled due to an unsupported world size",
        "custom all-reduce is off: it has no kernel for this number of GPUs",
        _AR_HINT,
        "custom_all_reduce.py",
        reason="world_size",
    ),
    _warning_pattern(
        "custom_all_reduce_off",
        WARNING,
        r"Custom allreduce is disabled because your platform lacks GPU P2P|[Cc]ustom allreduce.*P2P test failed",
        "custom all-reduce is off: no peer access between the GPUs",
        _AR_HINT,
        "custom_all_reduce.py",
        reason="no_p2p",
    ),
    _warning_pattern(
        "custom_all_reduce_off",
        INFO,
        r"Custom allreduce is disabled because this process group spans across nodes",
        "custom all-reduce is off: the group spans hosts",
        _AR_HINT,
        "custom_all_reduce.py",
        reason="multi_host",
    ),
    _warning_pattern(
        "custom_all_reduce_off",
        WARNING,
        r"Custom allreduce is disabled(?: because)?(?P<error>.*?)(?:\. To silence|$)",
        "custom all-reduce is off",
        _AR_HINT,
        "custom_all_reduce.py",
        reason="other",
    ),
    _warning_pattern(
        "draft_tokens_adjusted",
        WARNING,
        r"speculative_num_draft_tokens is adjusted to speculative_num_steps \+ 1",
        "the server set draft tokens to steps + 1, since topk is 1",
        "Ask for steps + 1 draft tokens; two variants that differ only there are one.",
        "server_args.py",
    ),
    _warning_pattern(
        "requests_capped",
        WARNING,
        r"[Mm]ax[ _]running[ _]requests is (?:reset|set|adjusted) to (?P<requests>\d+)",
        "the server lowered the number of requests it runs at once",
        "Set --max-running-requests; what is beyond the cap only queues.",
        "server_args.py: 48 with speculation",
    ),
    _warning_pattern(
        "jit_in_traffic",
        WARNING,
        r"DeepGEMM JIT code generation|Entering DeepGEMM JIT|DeepGEMM warmup:|JIT[- ]compil|Compiling kernel|"
        r"torch\.compile (?:takes|took)|Autotuning",
        "kernels were compiled while requests were served: these rates are not the server's",
        _JIT_HINT,
        "deep_gemm, sglang issue 4773",
        serving_only=True,
    ),
    _warning_pattern(
        "memory_retracted",
        WARNING,
        r"KV cache pool is full\. Retract|Retract(?:ed)? requests|#retracted_reqs?: [1-9]",
        "the KV cache was full and running requests were pushed back",
        "Lower the concurrency or raise --mem-fraction-static; times of such runs hold recomputation.",
        "scheduler.py",
    ),
    _warning_pattern(
        "graphs_off",
        WARNING,
        r"(?:Disable|Disabling) (?:the )?(?:cuda|CUDA) graph|[Cc]uda graph is disabled",
        "CUDA graphs are off",
        "Leave them on in a benchmark, or off in every variant.",
        "server_args.py",
    ),
    _warning_pattern(
        "overlap_off",
        INFO,
        r"[Oo]verlap schedule\w* is (?:disabled|not implemented|turned off)",
        "the overlap scheduler is off",
        "Expected with some features; compare like with like.",
        "server_args.py",
    ),
    _warning_pattern(
        "weights_missing",
        WARNING,
        r"Some weights (?:of .*)?(?:are|were) not initialized|[Pp]arameter \S+ not found in params_dict",
        "weights of the model were not in its files",
        "Check that the files are complete and meant for this architecture.",
        "loader.py",
    ),
    _warning_pattern(
        "kernel_untuned",
        WARNING,
        r"Using default (?:MoE|W8A8|fused) .*config.*(?:sub-optimal|suboptimal)|Config file not found at",
        "a kernel runs with default settings, not tuned for this GPU and shape",
        "Tune it (benchmark/kernels of SGLang) or compare only hosts with the same tables.",
        "fused_moe_triton, fp8_kernel.py",
    ),
    _warning_pattern(
        "input_truncated",
        WARNING,
        r"[Ii]nput (?:length|is too long|ids are too long).*(?:truncat|exceed)|is longer than the model's context length",
        "inputs were longer than the server takes",
        "Shorten the prompts of the workload or raise --context-length.",
        "tokenizer_manager.py",
    ),
    _warning_pattern(
        "request_error",
        WARNING,
        r"Exception in ASGI application|Internal Server Error\b|Invalid request",
        "requests failed inside the server",
        "Look at the traceback in the log: failed requests make rates look better or worse than they are.",
        "uvicorn, http_server.py",
    ),
    _warning_pattern(
        "watchdog_soft",
        WARNING,
        r"[Ww]atchdog (?:soft )?timeout.*soft=True|[Ss]oft watchdog timeout",
        "a forward pass stood still longer than the soft watchdog allows; the server went on",
        "Look for compiles or a slow collective at that time.",
        "scheduler.py",
        versions=VersionRange("0.5.9"),
    ),
    _warning_pattern(
        "deprecated_argument",
        INFO,
        r"'(?P<argument>--[\w-]+)' is deprecated|(?P<argument_too>--[\w-]+) is deprecated",
        "an argument is deprecated",
        "Write the name that the line gives; it may go in the next version.",
        "server_args.py",
    ),
    _warning_pattern(
        "acceptance_simulated",
        WARNING,
        r"SGLANG_SIMULATE_ACC_LEN|[Ss]imulat\w+ (?:the )?(?:accept|acc[_ ]len)",
        "the accept length is simulated: outputs are not the model's",
        "Use such runs only to compare communication at equal acceptance.",
        "spec_utils.py",
    ),
    _warning_pattern(
        "files_limit",
        INFO,
        r"Fail to set RLIMIT",
        "the limit on open files could not be raised",
        "Raise `ulimit -n` for many connections.",
        "utils.py",
    ),
    _warning_pattern(
        "simulated_engine",
        INFO,
        r"SIMULATED ENGINE",
        "the log is of a simulated engine: a model of time",
        "Never compare it with a real engine.",
        "benchfleet",
    ),
)
WARNING_KEYWORDS = (
    "allreduce", "speculative", "equests", "jit", "deepgemm", "p2p", "retract", "graph", "overlap", "weights", "params_dict",
    "default", "config file", "nput", "exception in asgi", "internal server", "invalid request", "watchdog", "deprecated", "simulat",
    "rlimit", "compil", "autotun",
)  # fmt: skip


def match_warning(text: str) -> tuple[WarningPattern, Mapping[str, str]] | None:
    """The first row whose words are in this message, with the details that it names."""
    lowered = text.lower()
    if text.startswith(("server_args=", " ")) or not any(
        map(lowered.__contains__, WARNING_KEYWORDS)
    ):
        return None
    for pattern in WARNING_PATTERNS:
        if found := pattern.pattern.search(text):
            return pattern, {name: value for name, value in found.groupdict().items() if value}
    return None
