"""Owns the reading of a dead server's log: one table from words to failure class. Pure; decides on no retry."""

from __future__ import annotations

import re

from fleet_protos.errors import ErrorKind

# The first row that matches wins: a row is above those whose words also appear in its own case.
# (failure class, words, where the words are from)
_TABLE = (
    # sglang issue 3752: its dump of the batch ends in `Killed`, which is not the host's doing
    ("watchdog_timeout", r"Watchdog timeout \("),
    # sglang issue 3430, `Capture cuda graph failed`; says CUDA out of memory too
    ("oom_cuda_graph", r"Capture cuda graph failed: .*out of memory"),
    # sglang issues 322, 4330; 0.4.1 - 0.5.23
    ("oom_kv_cache", r"Not enough memory\. Please try to increase --mem-fraction-static|KV cache pool leaks|No KV cache memory left"),
    # torch 2.x wording; HIP says the same
    ("cuda_oom", r"(?:CUDA|HIP) out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation"),
    # server_args.py 0.5.9 - 0.5.23, torch's TCPStore; before the HTTP port, whose words are a part of these
    ("dist_port_in_use", r"dist_init_port at \d+ is not available|DistNetworkError.*EADDRINUSE|The port \d+ is in use, but we could not"),
    # uvicorn; found out only after the weights are loaded
    ("port_in_use", r"error while attempting to bind on address|\[Errno 98\]|address already in use"),
    # argparse: exit code 2
    ("spec_args_invalid", r"^[\w. -]+: error: .*--speculative-"),
    ("argument_error", r"^[\w. -]+: error: "),
    # sglang issue 36528: EAGLE3 without a draft loads the target as its own draft
    ("spec_draft_missing", r"AttributeError: .*(?:set_embed|hot_token_id)"),
    # server_args.py 0.5.9, arg_groups/speculative_hook.py and speculative/draft_utils.py 0.5.23
    (
        "spec_args_invalid",
        r"^(?:ValueError|AssertionError|NotImplementedError): .*(?:speculative|Spec v2|topk = 1"
        r"|(?:EAGLE3?|NEXTN|NGRAM|STANDALONE|DFLASH|DSPARK)\b.*(?:not support|support|require))",
    ),
    # huggingface_hub; a private repository without a token says `not found` as well
    ("hf_auth", r"GatedRepoError|Cannot access gated repo|gated repo"),
    (
        "model_not_found",
        r"RepositoryNotFoundError|Repository Not Found|is not a valid model identifier|is not a local folder|Repo id must be"
        r"|does not appear to have a file named config\.json|LocalEntryNotFoundError|Can't load the configuration of"
        r"|FileNotFoundError: .*config\.json|Unrecognized model in|OfflineModeIsEnabled",
    ),
    # engine.py 0.5.10 - 0.5.23; `Exit code: -9` alone up to 0.5.9
    ("host_oom_kill", r"died during initialization \(exit code: -9\)|^Exit code: -9|oom-kill|Out of memory: Killed process"),
    # custom all-reduce without NVLink, sglang issue 4814
    ("p2p_unsupported", r"peer access is not supported between these two devices"),
    ("fabric_manager_down", r"Error 802: system not yet initialized"),
    ("gpu_busy_leftover", r"memory capacity is unbalanced"),
    ("weight_load_incomplete", r"other ranks that didn't finish loading"),
    ("scheduler_crashed", r"crashed with exit code|Scheduler hit an exception|SIGQUIT received|Received sigquit"),
)
# What would fail again however often it is tried, and what ran out of memory; the rest ended for reasons that may pass.
_KINDS = {
    "spec_args_invalid": ErrorKind.CONFIG,
    "argument_error": ErrorKind.CONFIG,
    "spec_draft_missing": ErrorKind.CONFIG,
    "hf_auth": ErrorKind.CONFIG,
    "model_not_found": ErrorKind.CONFIG,
    "p2p_unsupported": ErrorKind.CONFIG,
    "oom_cuda_graph": ErrorKind.SERVER_OOM,
    "oom_kv_cache": ErrorKind.SERVER_OOM,
    "cuda_oom": ErrorKind.SERVER_OOM,
    "host_oom_kill": ErrorKind.SERVER_OOM,
    "port_in_use": ErrorKind.SERVER_LAUNCH,
    "dist_port_in_use": ErrorKind.SERVER_LAUNCH,
}
_RULES = tuple((name, re.compile(words)) for name, words in _TABLE)
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b")
_TOKEN = re.compile(r"hf_\w{8,}")
_LINE_LIMIT = 400


def explain(log: str, exit_code: int) -> tuple[str, str]:
    """(failure class, one line of cause) from the end of a log. A scheduler that died is told by the exception that ended it."""
    lines = [line for line in log.splitlines() if not line[:1].isspace()]  # an indented one quotes source in a traceback
    for failure_class, rule in _RULES:
        found = next(filter(rule.search, lines), "")
        if found:
            told = _last_exception(lines) if failure_class == "scheduler_crashed" else ""
            return failure_class, _line(told or found)
    if exit_code == -9:
        return "killed", "the server got SIGKILL, and not from its agent: the host's out-of-memory killer does that, see dmesg"
    return "unknown", _line(_last_exception(lines))


def kind_of(failure_class: str) -> ErrorKind:
    """What to do next about a server that ended so."""
    return _KINDS.get(failure_class, ErrorKind.SERVER_EXITED)


def _last_exception(lines: list[str]) -> str:
    return next(filter(_EXCEPTION.match, reversed(lines)), "")


def _line(text: str) -> str:
    """One line without secrets, not longer than a screen's few lines."""
    text = _TOKEN.sub("hf_…", text.strip())
    return text if len(text) <= _LINE_LIMIT else text[:_LINE_LIMIT] + "…"
