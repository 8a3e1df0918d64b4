"""Owns the versions of what is installed beside a Python, read from the names of its metadata
folders; runs nothing.

Starting that Python to ask would cost seconds on a host that is about to measure. Source:
`NAME-VERSION.dist-info` (PEP 376, 427).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path

# What can change a number: the engine, its kernels, what computes and what communicates.
RECORDED_PACKAGES = (
    "flashinfer-python", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu13",
    "nvidia-nccl-cu12", "nvidia-nccl-cu13", "sgl-kernel", "sglang", "sglang-kernel", "torch", "transformers", "triton",
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
    """Versions of the packages named and of Python itself, as far as they can be read; empty for a
    program that is no installed Python.

    A virtual environment is read as it is: what it takes from the system's packages is not among
    them.
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
    """The CUDA that torch was built for (`2.9.1+cu129`), else the runtime installed beside it;
    empty for a build without.
    """
    built = re.search(r"\+cu(\d+)(\d)\b", found.get("torch", ""))
    runtime = next(
        (version for name, version in found.items() if name.startswith("nvidia-cuda-runtime")), ""
    )
    return f"{built[1]}.{built[2]}" if built else runtime


def nccl_package_version(found: Mapping[str, str]) -> str:
    """The NCCL that is installed as a package; empty when none is."""
    return next((version for name, version in found.items() if name.startswith("nvidia-nccl")), "")


def driver_version(version_file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """The kernel driver that is loaded, `NVRM version: … Kernel Module  580.65.06 …`; empty without
    one.
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
    """The full version from pyvenv.cfg, else what the name of the program itself says."""
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
