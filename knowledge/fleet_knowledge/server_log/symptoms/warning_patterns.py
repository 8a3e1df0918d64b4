"""Lists the log messages that deserve a warning although the server did not fail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet_knowledge.release import VersionRange

INFO, WARNING = "info", "warning"
_JIT_HINT = (
    "Warm the server up with the shapes of the workload before measuring (or precompile: python -m "
    "sglang.compile_deep_gemm). Discard this run."
)
_AR_HINT = (
    "Record for each host whether custom all-reduce is on. Hosts with and hosts without it run "
    "different code and cannot be compared."
)


@dataclass(frozen=True, slots=True)
class WarningPattern:
    """Describes one wording that deserves a warning.

    `reason` distinguishes several wordings that have the same code. Named groups of `pattern`
    become details. A `serving_only` pattern counts only after the server is ready.
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
        "custom all-reduce is off: more than two GPUs are connected by PCIe only",
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
        (
            r"Custom allreduce is disabled because your platform lacks GPU P2P|[Cc]ustom "
            r"allreduce.*P2P test failed"
        ),
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
        (
            "Set the draft tokens to steps + 1. Variants that differ only in the draft tokens run "
            "the same server."
        ),
        "server_args.py",
    ),
    _warning_pattern(
        "requests_capped",
        WARNING,
        r"[Mm]ax[ _]running[ _]requests is (?:reset|set|adjusted) to (?P<requests>\d+)",
        "the server lowered the number of requests that it runs at once",
        "Set --max-running-requests. Requests above this limit wait in the queue.",
        "server_args.py: 48 with speculation",
    ),
    _warning_pattern(
        "jit_in_traffic",
        WARNING,
        r"DeepGEMM JIT code generation|Entering DeepGEMM JIT|DeepGEMM warmup:|JIT[- ]compil|"
        r"Compiling kernel|"
        r"torch\.compile (?:takes|took)|Autotuning",
        "kernels were compiled while requests were served: the rates of this time are too low",
        _JIT_HINT,
        "deep_gemm, sglang issue 4773",
        serving_only=True,
    ),
    _warning_pattern(
        "memory_retracted",
        WARNING,
        r"KV cache pool is full\. Retract|Retract(?:ed)? requests|#retracted_reqs?: [1-9]",
        "the KV cache was full and running requests were retracted",
        (
            "Lower the concurrency or raise --mem-fraction-static. The times of these runs include "
            "the recomputation of retracted requests."
        ),
        "scheduler.py",
    ),
    _warning_pattern(
        "graphs_off",
        WARNING,
        r"(?:Disable|Disabling) (?:the )?(?:cuda|CUDA) graph|[Cc]uda graph is disabled",
        "CUDA graphs are off",
        "Leave CUDA graphs on in a benchmark, or turn them off in every variant.",
        "server_args.py",
    ),
    _warning_pattern(
        "overlap_off",
        INFO,
        r"[Oo]verlap schedule\w* is (?:disabled|not implemented|turned off)",
        "the overlap scheduler is off",
        "Some features turn it off. Compare only servers that have the same setting.",
        "server_args.py",
    ),
    _warning_pattern(
        "weights_missing",
        WARNING,
        (
            r"Some weights (?:of .*)?(?:are|were) not initialized|[Pp]arameter \S+ not found in "
            r"params_dict"
        ),
        "some weights of the model were not in its files",
        "Check that the files are complete and meant for this architecture.",
        "loader.py",
    ),
    _warning_pattern(
        "kernel_untuned",
        WARNING,
        (
            r"Using default (?:MoE|W8A8|fused) .*config.*(?:sub-optimal|suboptimal)|Config file "
            r"not found at"
        ),
        "a kernel runs with default settings, not tuned for this GPU and shape",
        "Tune the kernel (benchmark/kernels of SGLang), or compare only hosts tuned alike.",
        "fused_moe_triton, fp8_kernel.py",
    ),
    _warning_pattern(
        "input_truncated",
        WARNING,
        (
            r"[Ii]nput (?:length|is too long|ids are too long).*(?:truncat|exceed)|is longer than "
            r"the model's context length"
        ),
        "inputs were longer than the server accepts",
        "Shorten the prompts of the workload or raise --context-length.",
        "tokenizer_manager.py",
    ),
    _warning_pattern(
        "request_error",
        WARNING,
        r"Exception in ASGI application|Internal Server Error\b|Invalid request",
        "requests failed inside the server",
        "Read the traceback in the log: failed requests distort the measured rates.",
        "uvicorn, http_server.py",
    ),
    _warning_pattern(
        "watchdog_soft",
        WARNING,
        r"[Ww]atchdog (?:soft )?timeout.*soft=True|[Ss]oft watchdog timeout",
        (
            "a forward pass made no progress for longer than the soft watchdog allows; the server "
            "continued"
        ),
        "Look for a compilation or a slow collective at that time.",
        "scheduler.py",
        versions=VersionRange("0.5.9"),
    ),
    _warning_pattern(
        "deprecated_argument",
        INFO,
        r"'(?P<argument>--[\w-]+)' is deprecated|(?P<argument_too>--[\w-]+) is deprecated",
        "an argument is deprecated",
        "Use the name that the log line gives. The next version may remove the old name.",
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
        "Raise `ulimit -n` if the server gets many connections.",
        "utils.py",
    ),
    _warning_pattern(
        "simulated_engine",
        INFO,
        r"SIMULATED ENGINE",
        "the log was written by the simulated engine, which only models time",
        "Never compare its results with those of a real engine.",
        "benchfleet",
    ),
)
WARNING_KEYWORDS = (
    "allreduce",
    "speculative",
    "equests",
    "jit",
    "deepgemm",
    "p2p",
    "retract",
    "graph",
    "overlap",
    "weights",
    "params_dict",
    "default",
    "config file",
    "nput",
    "exception in asgi",
    "internal server",
    "invalid request",
    "watchdog",
    "deprecated",
    "simulat",
    "rlimit",
    "compil",
    "autotun",
)


def match_warning(text: str) -> tuple[WarningPattern, Mapping[str, str]] | None:
    """Return the first pattern that matches this message, and the details that the message names.
    Return None if no pattern matches.
    """
    lowered = text.lower()
    if text.startswith(("server_args=", " ")) or not any(
        map(lowered.__contains__, WARNING_KEYWORDS)
    ):
        return None
    for pattern in WARNING_PATTERNS:
        if found := pattern.pattern.search(text):
            return pattern, {name: value for name, value in found.groupdict().items() if value}
    return None
