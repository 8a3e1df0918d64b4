"""NVML as a recording: answers of each call by function and GPU, and NVML's own errors for what a
GPU does not have.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml


class RecordedNvml:
    """Stands for the module pynvml. {"driver": "…", "init": "error name", "gpus":
    [{"nvmlDeviceGetName": …, "processes": [[pid, bytes]]}]}.

    A value that is a map becomes an object with its fields; {"raises": "NVMLError_…"} is raised. A
    call that is not recorded raises NVMLError_NotSupported. Constants and error classes are those
    of the real module.
    """

    def __init__(self, path: Path) -> None:
        self._recording: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        self.open = 0

    def nvmlInit(self) -> None:
        if "init" in self._recording:
            raise _error(self._recording["init"])
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return str(self._recording["driver"])

    def nvmlDeviceGetCount(self) -> int:
        return len(self._recording["gpus"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        gpu: dict[str, Any] = self._recording["gpus"][index]
        _answer(gpu.get("handle", {}))
        return gpu

    def nvmlDeviceGetGpuFabricInfo(self, gpu: dict[str, Any], reference: Any) -> None:
        told = _answer(gpu.get("nvmlDeviceGetGpuFabricInfo", {"raises": "NVMLError_NotSupported"}))
        reference._obj.state, reference._obj.status = told.state, told.status

    def nvmlDeviceGetNvLinkState(self, gpu: dict[str, Any], link: int) -> int:
        states = gpu.get("nvmlDeviceGetNvLinkState")
        if states is None:
            raise _error("NVMLError_NotSupported")
        if link >= len(states):
            raise _error("NVMLError_InvalidArgument")
        return int(states[link])

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: dict[str, Any]) -> list[Any]:
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in gpu.get("processes", ())
        ]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            return getattr(pynvml, name)
        getattr(pynvml, name)  # a call that the real module lacks is a mistake of ours
        return _call(name)


def _call(name: str) -> Callable[..., Any]:
    def call(gpu: dict[str, Any], *details: int) -> Any:
        recorded = gpu.get(name, {"raises": "NVMLError_NotSupported"})
        return _answer(
            recorded[str(details[0])]
            if details and isinstance(recorded, dict) and "raises" not in recorded
            else recorded
        )

    return call


def _answer(recorded: Any) -> Any:
    if isinstance(recorded, dict) and "raises" in recorded:
        raise _error(recorded["raises"])
    return SimpleNamespace(**recorded) if isinstance(recorded, dict) else recorded


def _error(name: str) -> Exception:
    codes = {
        type(pynvml.NVMLError(code)).__name__: code
        for key, code in vars(pynvml).items()
        if key.startswith("NVML_ERROR_")
    }
    error: Exception = pynvml.NVMLError(codes[name])
    return error
