"""Owns what the agent can read of its host: GPUs and a fingerprint. Changes nothing, runs no shell."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from pathlib import Path

_PROC_GPUS = Path("/proc/driver/nvidia/gpus")


def gpu_count() -> int:
    """NVIDIA GPUs that the kernel driver shows; 0 without the driver."""
    return len(list(_PROC_GPUS.iterdir())) if _PROC_GPUS.is_dir() else 0


def host_name() -> str:
    """The host's own name, without a domain."""
    return socket.gethostname().split(".")[0] or "localhost"


def fingerprint() -> dict[str, str]:
    """What identifies the conditions of this host and does not change while it runs. Blocking: files and one nvidia-smi call."""
    facts = {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpu_model": _first_field(Path("/proc/cpuinfo"), "model name"),
        "cpus": str(os.cpu_count() or 0),
        "memory_total": _first_field(Path("/proc/meminfo"), "MemTotal"),
        "cpu_governor": _text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
    }
    if gpu_count():
        facts["gpus"] = _nvidia_smi("name,memory.total,power.limit,pcie.link.width.max")
        facts["driver"] = _text(Path("/proc/driver/nvidia/version")).split("\n")[0]
    return {name: value for name, value in facts.items() if value}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _first_field(path: Path, name: str) -> str:
    for line in _text(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return " ".join(value.split())
    return ""


def _nvidia_smi(fields: str) -> str:
    argv = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(line.strip() for line in done.stdout.splitlines()) if done.returncode == 0 else ""
