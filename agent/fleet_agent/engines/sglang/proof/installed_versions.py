"""Reads which versions of packages are installed for a Python, from the names of their metadata
folders.

Starting this Python to ask for the versions would take seconds on a host that is about to measure.
Source: `NAME-VERSION.dist-info` (PEP 376, 427).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

# Packages that can change a result: the engine, its kernels, computation and communication.
RECORDED_PACKAGES = (
    "flashinfer-python", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-runtime-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "sgl-kernel", "sglang",
    "sglang-kernel", "torch", "transformers", "triton",
)  # fmt: skip
_FOLDERS = (
    "lib/python3.*/site-packages",
    "lib/python3.*/dist-packages",
    "lib/python3/dist-packages",
    "local/lib/python3.*/dist-packages",
)
_METADATA = re.compile(r"(.+)-([^-]+)\.(?:dist|egg)-info")


def read_installed_versions(
    python: Path, names: Collection[str] = RECORDED_PACKAGES
) -> dict[str, str]:
    """Return the versions of the named packages and of Python itself, as far as they can be read.

    The result is empty if `python` is not an installed Python. Packages that a virtual environment
    takes from the system are left out.
    """
    root = python.parent.parent
    found = {}
    for entry in (
        entry
        for pattern in _FOLDERS
        for folder in root.glob(pattern)
        for entry in folder.glob("*-info")
    ):
        match = _METADATA.fullmatch(entry.name)
        name = re.sub(r"[-_.]+", "-", match[1]).lower() if match else ""
        if match and name in names:
            found[name] = match[2]
    version = _python(root, python)
    return {**found, **({"python": version} if version and found else {})}


def cuda_version(found: Mapping[str, str]) -> str:
    """Return the CUDA version that torch was built for (`2.9.1+cu129`), else that of the installed
    CUDA runtime. Return an empty text if neither is known.
    """
    built = re.search(r"\+cu(\d+)(\d)\b", found.get("torch", ""))
    runtime = next(
        (version for name, version in found.items() if name.startswith("nvidia-cuda-runtime")), ""
    )
    return f"{built[1]}.{built[2]}" if built else runtime


def nccl_package_version(found: Mapping[str, str]) -> str:
    """Return the version of the NCCL package; empty if none is installed."""
    return next((version for name, version in found.items() if name.startswith("nvidia-nccl")), "")


def driver_version(version_file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Return the version of the loaded kernel driver of NVIDIA. Return an empty text if none is
    loaded.

    The line in the file reads `NVRM version: … Kernel Module 580.65.06 …`.
    """
    try:
        match = re.search(
            r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s",
            version_file.read_text(encoding="utf-8", errors="replace"),
        )
    except OSError:
        return ""
    return match[1] if match else ""


def _python(root: Path, python: Path) -> str:
    """Return Python's version from pyvenv.cfg, else the version in the name of the program."""
    try:
        lines = (root / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition("=")
        if key.strip() in ("version", "version_info"):
            return value.strip()
    named = re.fullmatch(r"python(3\.\d+)", python.resolve().name)
    return named[1] if named else ""
