"""Owns the reading of one message for signs of a failure: all tables in their order. Chooses no
root; classes are in `failures.py`.
"""

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
"""The first row that matches a message is what it tells."""

_EXCEPTION = r"^(?:[A-Za-z_][\w.]*\.)?\w*(?:Error|Exception|Interrupt|Exit|Warning)\b"
# Lines that use such words and tell of no failure
_HARMLESS = re.compile(
    r"Ignore import error|^server_args=|To silence this warning|(?i:py-?spy)|Deprecat|UserWarning|^warnings\.warn|^\s*\^+\s*$|NCCL INFO "
    r"|(?:init failed|disabled) \(|[Ww]atchdog soft|soft=True|Health check failed|^Possible solutions|^\d\. set --|^For debugging"
    r"|thrown while requesting (?:HEAD|GET)|^Failed to import .* with \w+Error\("
    r"|^Compile with|^CUDA kernel errors|^During handling of|^The above exception was|^INFO: .*\"(?:GET|POST) "
)
# Every row's words hold one of these; a quick look that spares most lines the slow one
SYMPTOM_KEYWORDS = (
    "error", "exception", "memory", "fail", "port", "time", "xid", "killed", "nccl", "exit code", "sigquit", "gpu", "cuda", "hip ",
    "dead", "gated", "token", "leak", "shm", "not found", "support", "valid", "closed", "reset by", "space", "hub", "divisible",
    "undefined symbol", "shared object", "installed with", "unbalanced", "oom", "nan in", "load", "nvlink", "ninja", "nvcc", "ptxas",
    "compil", "requires", "thread", "ulimit", "quota", "model", "topk", "crashed", "trust_remote", "ibv_", "hsa_", "kernel", "option",
    "bus error", "uncorrectable", "assert", "bad_alloc", "double", "exited", "status", "signal", "segmentation",
)  # fmt: skip
_KUBERNETES = re.compile(
    r"^\s+(?:Reason|Exit Code): "
)  # `kubectl describe` of a container that ended
_MAX_SEARCHED = 2000  # characters; what is longer prints data
_REQUEST_LOG = ("Receive: ", "Finish: ", "Receive OpenAI", "Received request")


def match_symptom(text: str) -> tuple[Symptom, Mapping[str, str]] | None:
    """The first row whose words are in this message, with the details that it names; None for a
    message of no failure.
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
    """Whether a message is the last line of a traceback: `torch.OutOfMemoryError: …`."""
    return bool(_RAISED.match(text)) and not text.startswith(
        ("Warning:", "UserWarning", "FutureWarning", "DeprecationWarning")
    )
