"""Recognises the errors of GPUs and of the driver that nvidia-smi and the kernel print.

Failure classes are those of `fleet_knowledge.failure_classes`. Sources: dcgm-exporter issue 604,
nvidia-container-runtime issue 189, open-gpu-kernel-modules issue 387, NVML's own error texts
(drivers 470 to 580), NVRM lines of dmesg.
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
        r"Unable to (?:determine|detect|get) the device handle for GPU\s?(?:\d+:\s*)?"
        rf"({_BUS}):\s*(.*)",
        re.I,
    ),
    re.compile(rf"NVRM: Xid \(PCI:({_BUS})\): (79,.*)"),
    re.compile(rf"NVRM: GPU ({_BUS}): (GPU has fallen off the bus.*)"),
)
_NO_BUS_LOST = re.compile(r"GPU is lost|GPU has fallen off the bus", re.I)


@dataclass(frozen=True, slots=True)
class DriverErrorPattern:
    """A pattern of an error text, with its failure class, its hint and the state of the host."""

    pattern: re.Pattern[str]
    failure_class: str
    hint: str
    host_state: str = "degraded"


def _error_pattern(pattern: str, failure_class: str, hint: str = "") -> DriverErrorPattern:
    return DriverErrorPattern(
        re.compile(pattern, re.I), failure_class, hint or FAILURES[failure_class].hint
    )


_RESET = (
    "Drain the host, then reset the GPU with `nvidia-smi -r -i INDEX` or reboot: the GPU stopped "
    "after an error."
)
_UNPOWERED = (
    "The GPU gets too little power: a power cable is missing or loose, or its power supply failed. "
    "Switch the host off, and reseat the cables."
)
_KERNEL_FAULT = (
    "The GPU's own firmware failed a request (Xid): reset the GPU or reboot, and drain the host if "
    "it happens again."
)
_PROGRAM_FAULT = (
    "A program on the GPU did something illegal (Xid), most often because of a bug in the server's "
    "version with these arguments. Try again on another GPU; if only this GPU fails, reset it."
)
_TOOLKIT = (
    "The container runtime cannot provide GPUs: install the NVIDIA Container Toolkit; `nvidia-smi` "
    "on the host itself must work."
)
_REBOOT = (
    "An update of the driver left the old kernel module loaded: reboot, or reload the modules; "
    "restart containers too."
)
_CGROUP = (
    "The container lost its devices (often after `systemctl daemon-reload` with the systemd cgroup "
    "driver), or the GPU was lost: restart the container; see dmesg on the host itself."
)
_MODULE = (
    "The NVIDIA kernel module is not loaded: install or rebuild it for this kernel "
    "(`dkms status`), run `modprobe nvidia`, or reboot."
)
_UNUSABLE = (
    "The driver runs but finds no usable GPU: `lspci` shows whether the card is there, dmesg why "
    "it failed (power, firmware, bus)."
)
_NO_PERMISSION = (
    "This user or system may not open the devices: check /dev/nvidia* and the container runtime."
)
_NO_DRIVER = (
    "No driver is installed here, or the container was started without its GPUs (--gpus all, the "
    "nvidia runtime)."
)
_XID = r"NVRM: Xid \(PCI:[^)]*\): "
DRIVER_ERROR_PATTERNS = (
    _error_pattern(r"GPU requires reset", "gpu_lost", _RESET),
    _error_pattern(r"Driver/library version mismatch", "driver_mismatch", _REBOOT),
    _error_pattern(
        r"couldn't communicate with the NVIDIA driver|Driver Not Loaded"
        r"|Failed to initialize NVML: .*driver is not running",
        "no_gpu",
        _MODULE,
    ),
    _error_pattern(r"Failed to initialize NVML: Unknown Error", "no_gpu", _CGROUP),
    _error_pattern(
        r"Failed to initialize NVML: (?:Insufficient Permissions|GPU access blocked)",
        "no_gpu",
        _NO_PERMISSION,
    ),
    _error_pattern(r"No devices were found", "no_gpu", _UNUSABLE),
    _error_pattern(
        r"nvidia-smi: (?:command )?not found|NVML Shared Library Not Found"
        r"|libnvidia-ml\.so.*cannot open",
        "no_gpu",
        _NO_DRIVER,
    ),
    _error_pattern(_XID + r"(?:48|63|64|94|95),", "gpu_ecc_error"),
    # 144 - 150 are NVLink's from Blackwell on; 45 only says that a program ended after them
    _error_pattern(
        _XID + r"(?:(?:74|14[4-9]|150),(?!.*Nonfatal)|45,.*\bXid (?:74|14[4-9]|150)\b)",
        "nvlink_error",
    ),
    _error_pattern(_XID + r"(?:61|62|69|109|119|120|140|143|154),", "gpu_fault", _KERNEL_FAULT),
    _error_pattern(_XID + r"(?:8|13|31|43|45),", "gpu_fault", _PROGRAM_FAULT),
    _error_pattern(r"NVRM: API mismatch", "driver_mismatch", _REBOOT),
    _error_pattern(
        r"could not select device driver .*gpu|nvidia-container-cli: [\w ]*error",
        "no_gpu",
        _TOOLKIT,
    ),
)


def read_driver_error(text: str) -> dict[str, Any] | None:
    """Return the error in a text, None if there is none.

    Keys: `failure_class`, `host_state`, `hint`, `cause_line`, and `bus_ids` of lost GPUs.
    """
    clean = strip_decoration(text)
    lost = lost_gpus(clean)
    if lost:
        return _lost_gpu_state(lost, _line_with(clean, next(iter(lost))))
    for error in DRIVER_ERROR_PATTERNS:
        if found := error.pattern.search(clean):
            line = _line_at(clean, found.start())
            return _state(error.failure_class, error.hint, line, error.host_state)
    if found := _NO_BUS_LOST.search(clean):
        return _lost_gpu_state({}, _line_at(clean, found.start()))
    return None


def lost_gpus(text: str) -> dict[str, str]:
    """Return the error of each lost GPU by its PCI address as printed, in the order of the text."""
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
    """Return whether the line alone shows an error. A server log has few lines that do."""
    return any(pattern.search(line) for pattern in _BUS_LOST) or any(
        error.pattern.search(line) for error in DRIVER_ERROR_PATTERNS
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
    if unpowered:
        hint = _UNPOWERED
    elif reset_only:
        hint = (
            f"The {where} stopped after an error and must be reset: drain the host, then run "
            "`nvidia-smi -r` or reboot."
        )
    else:
        hint = (
            f"The {where} gone (Xid 79 in dmesg): the host needs a reboot, often a cold power "
            "cycle. Take it out of the pool, and start no tensor-parallel job on the GPUs that "
            "seem to be left."
        )
    state = _state("gpu_lost", hint, line, "degraded") | {
        "bus_ids": list(lost),
        "avoid": failure.avoid,
    }
    note = (
        "the state of the other GPUs is unknown: query each with `nvidia-smi --id=BUS`, or see "
        "/proc/driver/nvidia/gpus"
    )
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
