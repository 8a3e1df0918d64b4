"""Distinguishes NCCL's errors. It holds patterns for the lines of each failure class, reads result
codes, and fills hints with values from the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fleet_knowledge.failure_classes import FAILURES, Failure
from fleet_knowledge.nccl.log.nccl_facts import NcclFailure

_NCCL_CLASSES = ("nccl_no_interface", "nccl_duplicate_gpu", "nccl_nvls_failed")
NCCL_FAILURES: Mapping[str, Failure] = {name: FAILURES[name] for name in _NCCL_CLASSES}
"""Classes that only NCCL's own lines distinguish; all rows are in `failure_classes`."""

NCCL_RESULTS = (
    "ncclSuccess", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
    "ncclInvalidArgument", "ncclInvalidUsage", "ncclRemoteError", "ncclInProgress",
)  # fmt: skip
"""NCCL's results; the index is the result's number."""
_RESULT_WORDS = {
    "unhandled cuda error": 1,
    "unhandled system error": 2,
    "internal error": 3,
    "invalid argument": 4,
    "invalid usage": 5,
    "remote process exited": 6,
}
_RESULT = re.compile(
    r"\b(nccl(?:UnhandledCudaError|SystemError|InternalError|InvalidArgument|InvalidUsage"
    r"|RemoteError))\b"
)


@dataclass(frozen=True, slots=True)
class NcclErrorPattern:
    """The pattern of the lines of one failure class. An earlier row is nearer to the root cause and
    wins over a later row.
    """

    failure_class: str
    lines: re.Pattern[str]
    source: str


def _error_pattern(failure_class: str, lines: str, source: str) -> NcclErrorPattern:
    return NcclErrorPattern(failure_class, re.compile(lines), source)


NCCL_ERROR_PATTERNS = (
    _error_pattern(
        "shm_too_small",
        r"(?:extend|create|allocate|map|posix_fallocate|[Ee]rror while (?:creating"
        r"|attaching)).{0,80}/dev/shm/"
        r"|/dev/shm/nccl-\S+.{0,80}No space left"
        r"|[Ee]rror while (?:creating|attaching to) shared memory segment",
        "src/misc/shmutils.cc 2.18 - 2.30; nccl issue 342",
    ),
    _error_pattern(
        "nccl_invalid_usage",
        r"[Nn]o algorithm/protocol available",
        "src/enqueue.cc 2.18 - 2.30; nccl issue 1898",
    ),
    _error_pattern(
        "nccl_invalid_usage",
        r"Unrecognized (?:element|prefix) token|All entries except the first must have a prefix",
        "src/graph/tuning.cc 2.24 - 2.30",
    ),
    _error_pattern(
        "nccl_version_mismatch",
        r"Mismatched NCCL version|undefined symbol: nccl|NCCL version mismatch",
        "src/init.cc 2.28 - 2.30",
    ),
    _error_pattern(
        "nccl_duplicate_gpu",
        r"Duplicate GPU detected|Multiple Ranks are using the same GPU",
        "src/init.cc 2.18 - 2.30",
    ),
    _error_pattern(
        "nccl_no_interface",
        r"[Nn]o socket interface found|No usable listening interface found|No IP interface found",
        "src/bootstrap.cc, net_socket.cc",
    ),
    _error_pattern(
        "nccl_nvls_failed",
        r"Failed to bind NVLink SHARP|NVLS.{0,40}(?:multicast|[Mm]ulticast).{0,80}(?:fail|error)"
        r"|cuMulticast\w+.{0,60}fail",
        "src/transport/nvls.cc 2.18 - 2.30",
    ),
    _error_pattern(
        "nccl_nvls_failed",
        r"^nvls\.cc: .*(?:[Ff]ailure|[Ff]ailed|[Ee]rror)",
        "src/transport/nvls.cc: a WARN of this file",
    ),
    _error_pattern(
        "nvlink_error",
        r"P2P is disabled between NVLINK connected GPUs",
        "src/graph/paths.cc 2.18 - 2.30",
    ),
    _error_pattern(
        "p2p_unsupported",
        r"[Pp]eer access is not supported between these two devices",
        "CUDA error 217",
    ),
    _error_pattern(
        "ib_error",
        r"NET/IB.{0,40}(?:Got completion .{0,80}(?:error|status)|[Gg]ot async event"
        r"|Unable to (?:open|query))"
        r"|ibv_\w+ failed",
        "src/transport/net_ib, src/misc/ibvwrap.cc 2.18 - 2.30",
    ),
    _error_pattern(
        "nccl_unreachable",
        r"[Cc]onnect(?: to \S+)? (?:failed|returned).*(?:No route|unreachable|timed out"
        r"|connection abort|Cannot assign)",
        "src/misc/socket.cc 2.18 - 2.30",
    ),
    _error_pattern(
        "nccl_init_failed",
        r"[Cc]uda failure|CUDA failure|No transport found for rank|has no transport for"
        r"|failed to peer with device"
        r"|cudaIpcGetMemHandle failed"
        r"|Could not (?:open|find) .{0,40}topology",
        "src/init.cc, checks.h, transport.cc 2.18 - 2.30",
    ),
    _error_pattern(
        "nccl_timeout",
        r"Watchdog caught collective operation timeout|collective operation timeout"
        r"|NCCL.{0,40}timed out in"
        r"|watchdog thread terminated with exception",
        "PyTorch ProcessGroupNCCL.cpp",
    ),
    _error_pattern(
        "nccl_peer_lost",
        r"remote process exited or there was a network error|ncclRemoteError"
        r"|[Cc]onnection (?:closed|reset) by (?:remote )?peer"
        r"|Socket recv failed|[Cc]onnection refused|exceeded (?:error )?retr"
        r"|Could not receive type from localRank"
        r"|socketProgress: Connection closed|Message truncated",
        "src/misc/socket.cc, src/proxy.cc 2.18 - 2.30",
    ),
    _error_pattern(
        "nccl_invalid_usage",
        r"ncclInvalid(?:Usage|Argument)|NCCL error.{0,200}invalid (?:usage|argument)",
        "PyTorch NCCLUtils.hpp",
    ),
    _error_pattern(
        "nccl_init_failed",
        r"NCCL error.{0,200}(?:unhandled (?:cuda|system) error|internal error)"
        r"|nccl(?:UnhandledCuda|System|Internal)Error",
        "PyTorch NCCLUtils.hpp",
    ),
)
_NAMED = re.compile(r"for function (?P<function>\w+)(?: with datatype (?P<datatype>\w+))?")
_SET = re.compile(r"(?P<variable>NCCL_\w+) was set to (?P<value>.+?)\.(?:\s|$)")
_TOKEN = re.compile(
    r'Unrecognized (?:element|prefix) token "(?P<token>[^"]*)" when parsing "(?P<value>[^"]*)"'
)
_CUDA = re.compile(r"[Cc][Uu][Dd][Aa] failure(?: \d+)? '(?P<reason>[^']*)'")


def match_error(text: str) -> int | None:
    """Return the index in NCCL_ERROR_PATTERNS of the row that matches `text`; None if the text is
    not an error.
    """
    return next(
        (place for place, row in enumerate(NCCL_ERROR_PATTERNS) if row.lines.search(text)), None
    )


def read_result(text: str) -> str:
    """Return NCCL's result that `text` names, such as `ncclSystemError (2)`; empty if it names
    none.
    """
    found = _RESULT.search(text)
    number = (
        NCCL_RESULTS.index(found[1])
        if found
        else next((code for words, code in _RESULT_WORDS.items() if words in text), 0)
    )
    return f"{NCCL_RESULTS[number]} ({number})" if number else ""


def build_failure(place: int, text: str, result: str) -> NcclFailure:
    """Return the failure that the row at index `place` describes, with the values that its line
    names.
    """
    name = NCCL_ERROR_PATTERNS[place].failure_class
    row = FAILURES.get(name)
    named, was_set, token = _NAMED.search(text), _SET.search(text), _TOKEN.search(text)
    failure = NcclFailure(
        failure_class=name,
        cause_line=text,
        hint=row.hint if row else "",
        result=result,
        retryable=row.retryable if row else True,
        variable=was_set["variable"] if was_set else "",
        value=was_set["value"] if was_set else token["value"] if token else "",
        function=named["function"] if named else "",
        datatype=(named["datatype"] or "") if named else "",
    )
    return _with_specific_hint(failure, text)


def _with_specific_hint(failure: NcclFailure, text: str) -> NcclFailure:
    if failure.failure_class == "nccl_invalid_usage" and failure.function:
        return replace(failure, hint=_no_algorithm_hint(failure))
    token = _TOKEN.search(text)
    if token:
        unknown = (
            f"NCCL does not know `{token['token']}` in `{token['value']}`; from 2.24 it refuses "
            "unknown words"
        )
        cure = (
            "Correct NCCL_ALGO or NCCL_PROTO, whichever contains it; `fleetctl lint` checks the "
            "words of each version."
        )
        return replace(failure, hint=f"{unknown}. {cure}")
    cuda = _CUDA.search(text)
    if failure.failure_class == "nccl_init_failed" and cuda:
        return replace(failure, hint=_cuda_hint(cuda["reason"]))
    return failure


def _no_algorithm_hint(failure: NcclFailure) -> str:
    setting = f"{failure.variable}={failure.value}" if failure.variable else "The setting"
    example = f"allreduce:{failure.value.lower()}" + (
        "" if "ring" in failure.value.lower() else ",ring"
    )
    cure = (
        f"{failure.variable}='{example}'"
        if failure.variable == "NCCL_ALGO"
        else "NCCL_ALGO or NCCL_PROTO for that collective alone"
    )
    return (
        f"{setting} has no implementation for {failure.function}. Restrict the setting to one "
        "collective (NCCL 2.24 and later) and add a second choice, because some datatypes lack an "
        f"implementation too: {cure}. The cause is the job, not the host: every host fails alike."
    )


def _cuda_hint(reason: str) -> str:
    first = f"CUDA refused an operation while NCCL initialised ('{reason}')."
    if "not supported" in reason:
        return (
            f"{first} cuMem or P2P on a virtual GPU or virtualised PCIe causes this: try "
            "NCCL_CUMEM_ENABLE=0 and NCCL_P2P_DISABLE=1; check that the driver supports the CUDA "
            "version."
        )
    if "out of memory" in reason:
        return (
            f"{first} NCCL needs its own GPU memory: lower --mem-fraction-static, NCCL_BUFFSIZE or "
            "the number of channels."
        )
    return (
        f"{first} Check that the driver supports the CUDA version, and check the GPU's state "
        "(`nvidia-smi`, dmesg)."
    )
