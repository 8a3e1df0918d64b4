"""Owns what nvidia-smi and the kernel say when a GPU or the driver is not well; classes are those
of `fleet_knowledge.failure_classes`.

Sources: dcgm-exporter issue 604, nvidia-container-runtime issue 189, open-gpu-kernel-modules issue
387, NVML's own error texts (drivers 470 to 580), NVRM lines of dmesg.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet_knowledge.failure_classes import FAILURES
from fleet_knowledge.host.topology_matrix import strip_decoration

_BUS = r"[0-9A-Fa-f]{3,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}(?:\.[0-9A-Fa-f])?"
_BUS_LOST = (
    re.compile(
        rf"Unable to (?:determine|detect|get) the device handle for GPU\s?(?:\d+:\s*)?({_BUS}):\s*(.*)",
        re.I,
    ),
    re.compile(rf"NVRM: Xid \(PCI:({_BUS})\): (79,.*)"),
    re.compile(rf"NVRM: GPU ({_BUS}): (GPU has fallen off the bus.*)"),
)
_NO_BUS_LOST = re.compile(r"GPU is lost|GPU has fallen off the bus", re.I)


@dataclass(frozen=True, slots=True)
class DriverErrorPattern:
    """A text that tells a state of the host. `failure_class` empty: no class of a server's failure,
    `hint` says it all.
    """

    pattern: re.Pattern[str]
    failure_class: str
    hint: str
    host_state: str = "degraded"


def _error_pattern(pattern: str, failure_class: str, hint: str = "") -> DriverErrorPattern:
    return DriverErrorPattern(
        re.compile(pattern, re.I), failure_class, hint or FAILURES[failure_class].hint
    )


_UNPOWERED = "The GPU gets too little power: a power cable is missing or loose, or its supply failed. Switch the host off, and reseat them."
_KERNEL_FAULT = "The GPU's own firmware failed a request (Xid): reset the GPU or reboot, and drain the host when it comes back."
_PROGRAM_FAULT = (
    "A program on the GPU did something illegal (Xid): most often a bug of the server's version with these arguments. Try once more on"
    " another GPU; when it follows the GPU, reset it."
)
_TOOLKIT = "The container runtime cannot give GPUs: install the NVIDIA Container Toolkit; `nvidia-smi` on the host itself must work."
_REBOOT = "An update of the driver left the old kernel module loaded: reboot, or reload the modules; restart containers too."
_CGROUP = (
    "The container lost its devices (often after `systemctl daemon-reload` with the systemd cgroup driver), or the GPU was lost: restart"
    " the container; on the host itself look at dmesg."
)
_MODULE = "The NVIDIA kernel module is not loaded: install or rebuild it for this kernel (`dkms status`), `modprobe nvidia`, or reboot."
_UNUSABLE = "The driver runs and sees no usable GPU: `lspci` shows whether the card is there, dmesg why it failed (power, firmware, bus)."
DRIVER_ERROR_PATTERNS = (
    _error_pattern(r"GPU requires reset", "gpu_lost", "The GPU stopped after an error: drain the host, then `nvidia-smi -r -i INDEX` or reboot."),
    _error_pattern(r"Driver/library version mismatch", "driver_mismatch", _REBOOT),
    _error_pattern(r"couldn't communicate with the NVIDIA driver|Driver Not Loaded|Failed to initialize NVML: .*driver is not running",
             "no_gpu", _MODULE),
    _error_pattern(r"Failed to initialize NVML: Unknown Error", "no_gpu", _CGROUP),
    _error_pattern(r"Failed to initialize NVML: (?:Insufficient Permissions|GPU access blocked)", "no_gpu",
             "The devices may not be opened by this user or system: look at /dev/nvidia* and the container's runtime."),
    _error_pattern(r"No devices were found", "no_gpu", _UNUSABLE),
    _error_pattern(r"nvidia-smi: (?:command )?not found|NVML Shared Library Not Found|libnvidia-ml\.so.*cannot open", "no_gpu",
             "No driver is installed here, or the container was started without its GPUs (--gpus all, the nvidia runtime)."),
    _error_pattern(r"NVRM: Xid \(PCI:[^)]*\): (?:48|63|64|94|95),", "gpu_ecc_error"),
    # 144 - 150 are NVLink's from Blackwell on; 45 only says that a program ended after them
    _error_pattern(r"NVRM: Xid \(PCI:[^)]*\): (?:(?:74|14[4-9]|150),(?!.*Nonfatal)|45,.*\bXid (?:74|14[4-9]|150)\b)", "nvlink_error"),
    _error_pattern(r"NVRM: Xid \(PCI:[^)]*\): (?:61|62|69|109|119|120|140|143|154),", "gpu_fault", _KERNEL_FAULT),
    _error_pattern(r"NVRM: Xid \(PCI:[^)]*\): (?:8|13|31|43|45),", "gpu_fault", _PROGRAM_FAULT),
    _error_pattern(r"NVRM: API mismatch", "driver_mismatch", _REBOOT),
    _error_pattern(r"could not select device driver .*gpu|nvidia-container-cli: [\w ]*error", "no_gpu", _TOOLKIT),
)  # fmt: skip


def read_driver_error(text: str) -> dict[str, Any] | None:
    """The failure that the text tells: `failure_class, host_state, hint, cause_line`, of lost GPUs
    `bus_ids`; None when it tells none.
    """
    clean = strip_decoration(text)
    lost = lost_gpus(clean)
    if lost:
        return _lost_gpu_state(lost, _line_with(clean, next(iter(lost))))
    for symptom in DRIVER_ERROR_PATTERNS:
        if found := symptom.pattern.search(clean):
            return _state(
                symptom.failure_class,
                symptom.hint,
                _line_at(clean, found.start()),
                symptom.host_state,
            )
    if found := _NO_BUS_LOST.search(clean):
        return _lost_gpu_state({}, _line_at(clean, found.start()))
    return None


def lost_gpus(text: str) -> dict[str, str]:
    """PCI address, as it was printed → what was said of it; in the order of the text."""
    found = sorted(
        (match.start(), match[1], " ".join(match[2].split()))
        for pattern in _BUS_LOST
        for match in pattern.finditer(text)
    )
    reasons: dict[str, str] = {}
    for _, bus, reason in found:
        if not any(bus.startswith(known) or known.startswith(bus) for known in reasons):
            reasons[bus] = reason
    return reasons


def is_driver_error_line(line: str) -> bool:
    """The line alone is a state of a host: for telling a terminal's paste from a server log."""
    return any(pattern.search(line) for pattern in _BUS_LOST) or any(
        symptom.pattern.search(line) for symptom in DRIVER_ERROR_PATTERNS
    )


def _lost_gpu_state(lost: Mapping[str, str], line: str) -> dict[str, Any]:
    reset_only = bool(lost) and all("requires reset" in reason.lower() for reason in lost.values())
    where = (
        f"GPU at {next(iter(lost))} is"
        if len(lost) == 1
        else f"GPUs at {', '.join(lost)} are"
        if lost
        else "GPU is"
    )
    failure = FAILURES["gpu_lost"]
    unpowered = bool(lost) and all("powered" in reason.lower() for reason in lost.values())
    hint = (
        _UNPOWERED
        if unpowered
        else (
            f"The {where} stopped after an error and must be reset: drain the host, then `nvidia-smi -r` or reboot."
            if reset_only
            else f"The {where} gone (Xid 79 in dmesg): the host needs a reboot, often a cold power cycle; take it out of the pool and"
            " start no tensor-parallel job on what seems to be left."
        )
    )
    state = _state("gpu_lost", hint, line, "degraded") | {
        "bus_ids": list(lost),
        "avoid": failure.avoid,
    }
    note = "the other GPUs are unknown: ask for each with `nvidia-smi --id=BUS`, or look into /proc/driver/nvidia/gpus"
    return state | {"remaining_gpus": None, "notes": [note]}


def _state(failure_class: str, hint: str, line: str, host_state: str) -> dict[str, Any]:
    return {
        "host_state": host_state,
        "failure_class": failure_class,
        "cause_line": line,
        "hint": hint,
    }


def _line_at(text: str, place: int) -> str:
    end = text.find("\n", place)
    return text[text.rfind("\n", 0, place) + 1 : end if end >= 0 else len(text)].strip()


def _line_with(text: str, word: str) -> str:
    return _line_at(text, text.find(word))
