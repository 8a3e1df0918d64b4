"""Reads NVIDIA GPUs through NVML (nvidia-ml-py). A field that a GPU or a driver lacks is None.

NVML is initialised again for each reading. Without this, the handle of a GPU that fell off the bus
would stay broken.
"""

from __future__ import annotations

import ctypes
import importlib
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet_agent.host import sysfs
from fleet_agent.host.gpus import GpuReading
from fleet_knowledge.host.gpu import Gpu, GpuProcess, gpu_from

_MIB = 1 << 20
_TOPOLOGY_LIMIT_S = 20.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# nvmlGpuFabricState_t, by number
_FABRIC = ("not supported", "not started", "in progress", "completed")
# NVML errors of a host without a driver, which is not a fault; then failure classes by NVML error
_ABSENT = frozenset({"NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"})
_CLASSES = {
    "NVMLError_LibRmVersionMismatch": "driver_mismatch",
    "NVMLError_GpuIsLost": "gpu_lost",
    "NVMLError_NoPermission": "no_gpu",
}
_SLOWDOWNS = {
    0x8: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}

Read = Callable[[Any, Any], Any]  # (the pynvml module, a handle)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _fabric(nvml: Any, handle: Any) -> str:
    info = nvml.c_nvmlGpuFabricInfo_t()
    nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    if info.state == 3 and info.status != 0:
        return f"failed (status {info.status})"
    return _FABRIC[info.state]


def _nvlinks(nvml: Any, handle: Any) -> int:
    """Return the number of NVLinks that are up. Raises NVMLError (not supported) if this model of
    GPU has no NVLink.
    """
    states = [nvml.nvmlDeviceGetNvLinkState(handle, 0)]
    for link in range(1, nvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(nvml.nvmlDeviceGetNvLinkState(handle, link))
        except nvml.NVMLError:
            break
    return sum(state == nvml.NVML_FEATURE_ENABLED for state in states)


def _slowed_by(nvml: Any, handle: Any) -> str | None:
    reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return ", ".join(name for bit, name in _SLOWDOWNS.items() if reasons & bit) or None


_FIELDS: Mapping[str, Read] = {
    "uuid": lambda nvml, gpu: _text(nvml.nvmlDeviceGetUUID(gpu)),
    "bus_id": lambda nvml, gpu: _text(nvml.nvmlDeviceGetPciInfo(gpu).busId),
    "name": lambda nvml, gpu: _text(nvml.nvmlDeviceGetName(gpu)),
    "memory_mib": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total // _MIB,
    "memory_used_mib": lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used // _MIB,
    "power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) // 1000,
    "ecc": lambda nvml, gpu: bool(nvml.nvmlDeviceGetEccMode(gpu)[0]),
    "mig": lambda nvml, gpu: bool(nvml.nvmlDeviceGetMigMode(gpu)[0]),
    "persistence": lambda nvml, gpu: bool(nvml.nvmlDeviceGetPersistenceMode(gpu)),
    "sm_clock_max_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory_clock_max_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(
        gpu, nvml.NVML_CLOCK_MEM
    ),
    "vbios": lambda nvml, gpu: _text(nvml.nvmlDeviceGetVbiosVersion(gpu)),
    "nvlinks": _nvlinks,
    "pcie_width": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),
    "pcie_width_max": lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),
    "pcie_generation": lambda nvml, gpu: nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
    "pcie_generation_max": lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
    "fabric": _fabric,
    "temperature_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(
        gpu, nvml.NVML_TEMPERATURE_GPU
    ),
    "sm_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    "memory_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
    "power_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) // 1000,
    "utilisation_percent": lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    "slowed_by": _slowed_by,
    "uncorrected_errors": lambda nvml, gpu: nvml.nvmlDeviceGetTotalEccErrors(
        gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    ),
}


class NvmlGpus:
    """Reads the GPUs that the driver of this host shows.

    `nvml` is the module pynvml or a replacement. If it is None, pynvml is imported.
    """

    is_recorded = False

    def __init__(self, nvml: Any = None, root: Path = Path("/")) -> None:
        self._nvml = nvml
        self._root = root

    def read(self) -> GpuReading:
        """Read all GPUs. On a host without a driver, the result has no GPU and no fault."""
        nvml = self._nvml or _import_pynvml()
        if nvml is None:
            return GpuReading()
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            return _fault_reading(error)
        try:
            return self._read(nvml)
        except nvml.NVMLError as error:
            return _fault_reading(error)
        finally:
            nvml.nvmlShutdown()

    def topology_text(self) -> str:
        """Return the output of `nvidia-smi topo -m` in English. Empty if the command fails."""
        try:
            done = subprocess.run(
                ["nvidia-smi", "topo", "-m"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TOPOLOGY_LIMIT_S,
                check=False,
                env={"PATH": _PATH, "LC_ALL": "C"},
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout if done.returncode == 0 else ""

    def _read(self, nvml: Any) -> GpuReading:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        gpus, processes = [], []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
            except nvml.NVMLError as error:
                gpus.append(Gpu(index, driver=driver, fault=_text(error)))
                continue
            gpus.append(self._gpu(nvml, handle, index, driver))
            processes += _processes(nvml, handle, index, self._root)
        return GpuReading(tuple(gpus), tuple(processes))

    def _gpu(self, nvml: Any, handle: Any, index: int, driver: str) -> Gpu:
        facts: dict[str, Any] = {"index": index, "driver": driver}
        for name, read in _FIELDS.items():
            try:
                facts[name] = read(nvml, handle)
            except nvml.NVMLError as error:
                if type(error).__name__ == "NVMLError_GpuIsLost":
                    facts["fault"] = _text(error)
        gpu = gpu_from(facts)
        return replace(gpu, numa=sysfs.numa_node(gpu.bus_id, self._root)) if gpu.bus_id else gpu


def _import_pynvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def _fault_reading(error: Exception) -> GpuReading:
    name = type(error).__name__
    return (
        GpuReading()
        if name in _ABSENT
        else GpuReading(fault=f"NVML: {error}", failure_class=_CLASSES.get(name, "no_gpu"))
    )


def _processes(nvml: Any, handle: Any, index: int, root: Path) -> list[GpuProcess]:
    try:
        found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return []
    return [_process(entry, index, root) for entry in found]


def _process(entry: Any, index: int, root: Path) -> GpuProcess:
    used = entry.usedGpuMemory // _MIB if entry.usedGpuMemory else None
    name = sysfs.process_name(entry.pid, root)
    return GpuProcess(int(entry.pid), name, used, gpu=index, visible=bool(name))
