"""Finds the first symptom that matches a message."""

from __future__ import annotations

import re
from collections.abc import Mapping

from fleet_knowledge.server_log.symptoms.host_symptoms import HOST_SYMPTOMS, MEMORY_SYMPTOMS
from fleet_knowledge.server_log.symptoms.launch_symptoms import (
    MODEL_SYMPTOMS,
    PORT_SYMPTOMS,
    SPECULATION_SYMPTOMS,
)
from fleet_knowledge.server_log.symptoms.serving_symptoms import NCCL_SYMPTOMS, SERVING_SYMPTOMS
from fleet_knowledge.server_log.symptoms.symptom import Symptom

LOG_SYMPTOMS = (
    *SPECULATION_SYMPTOMS,
    *MEMORY_SYMPTOMS,
    *PORT_SYMPTOMS,
    *MODEL_SYMPTOMS,
    *NCCL_SYMPTOMS,
    *HOST_SYMPTOMS,
    *SERVING_SYMPTOMS,
)
"""The first row that matches a message decides its class."""

_EXCEPTION = r"^(?:[A-Za-z_][\w.]*\.)?\w*(?:Error|Exception|Interrupt|Exit|Warning)\b"
# Lines that use such words without reporting a failure
_HARMLESS = re.compile(
    r"Ignore import error|^server_args=|To silence this warning|(?i:py-?spy)|Deprecat|UserWarning|"
    r"^warnings\.warn|^\s*\^+\s*$|NCCL INFO "
    r"|(?:init failed|disabled) \(|[Ww]atchdog soft|soft=True|Health check failed|^Possible "
    r"solutions|^\d\. set --|^For debugging"
    r"|thrown while requesting (?:HEAD|GET)|^Failed to import .* with \w+Error\("
    r"|^Compile with|^CUDA kernel errors|^During handling of|^The above exception was|^INFO: "
    r".*\"(?:GET|POST) "
)
# Every row needs one of these words; the check is faster than the patterns
SYMPTOM_KEYWORDS = (
    "error",
    "exception",
    "memory",
    "fail",
    "port",
    "time",
    "xid",
    "killed",
    "nccl",
    "exit code",
    "sigquit",
    "gpu",
    "cuda",
    "hip ",
    "dead",
    "gated",
    "token",
    "leak",
    "shm",
    "not found",
    "support",
    "valid",
    "closed",
    "reset by",
    "space",
    "hub",
    "divisible",
    "undefined symbol",
    "shared object",
    "installed with",
    "unbalanced",
    "oom",
    "nan in",
    "load",
    "nvlink",
    "ninja",
    "nvcc",
    "ptxas",
    "compil",
    "requires",
    "thread",
    "ulimit",
    "quota",
    "model",
    "topk",
    "crashed",
    "trust_remote",
    "ibv_",
    "hsa_",
    "kernel",
    "option",
    "bus error",
    "uncorrectable",
    "assert",
    "bad_alloc",
    "double",
    "exited",
    "status",
    "signal",
    "segmentation",
)
# From `kubectl describe` of a container that ended
_KUBERNETES = re.compile(r"^\s+(?:Reason|Exit Code): ")
_MAX_SEARCHED = 2000  # characters; longer messages print data
_REQUEST_LOG = ("Receive: ", "Finish: ", "Receive OpenAI", "Received request")


def match_symptom(text: str) -> tuple[Symptom, Mapping[str, str]] | None:
    """Return the first symptom that matches this message, and the details that the message names.

    Return None if the message does not report a failure.
    """
    if _KUBERNETES.match(text):
        text = text.strip()
    if text[:1].isspace() or text.startswith(_REQUEST_LOG):
        return None  # an indented line quotes source in a traceback
    text = text[:_MAX_SEARCHED]
    lowered = text.lower()
    if not any(map(lowered.__contains__, SYMPTOM_KEYWORDS)) or (
        _HARMLESS.search(text) and "scheduler died" not in text
    ):
        return None
    for symptom in LOG_SYMPTOMS:
        if found := symptom.pattern.search(text):
            return symptom, {
                name: value for name, value in found.groupdict().items() if value is not None
            }
    return None


_RAISED = re.compile(_EXCEPTION + r"(?::|$)")


def is_exception(text: str) -> bool:
    """Return whether a message is the last line of a traceback, such as `torch.OutOfMemoryError:
    …`.
    """
    return bool(_RAISED.match(text)) and not text.startswith(
        ("Warning:", "UserWarning", "FutureWarning", "DeprecationWarning")
    )
