"""Lists the failure classes of the host: GPUs, drivers, libraries, limits."""

from __future__ import annotations

from fleet_knowledge.failure_class import NEEDS_HOST_REPAIR, Failure
from fleet_protos.errors import ErrorKind

HOST_FAILURES = (
    Failure(
        "gpu_busy_leftover",
        ErrorKind.SERVER_LAUNCH,
        (
            "Another process holds memory of a GPU, often a scheduler of an earlier run whose "
            "parent is dead."
        ),
        (
            "See `nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv`; "
            "end your own processes and wait until the memory is free."
        ),
        (
            "Ending a process that you do not own, or starting the next job before the memory is "
            "free."
        ),
        "sglang issues 1533, 4233; pulls 2457, 5426",
    ),
    Failure(
        "fabric_manager_down",
        NEEDS_HOST_REPAIR,
        "This NVSwitch host does not run an nvidia-fabricmanager of exactly the driver's version.",
        "Start or update nvidia-fabricmanager; look at Fabric State in `nvidia-smi -q`.",
        "Trusting plain nvidia-smi, which works even without the fabric manager.",
        "pytorch issue 35710, CUDA error 802",
    ),
    Failure(
        "driver_mismatch",
        NEEDS_HOST_REPAIR,
        (
            "The driver and the CUDA libraries do not match (a container too new for the driver, "
            "or an update without a reboot)."
        ),
        (
            "Update the driver, or use an image that fits the driver. After a driver update, "
            "reboot or reload the modules."
        ),
        "Reinstalling torch.",
        "CUDA errors 35, 803, 804; NVML `Driver/library version mismatch`",
    ),
    Failure(
        "no_gpu",
        NEEDS_HOST_REPAIR,
        "The process sees no GPU, or does not see the GPU that was requested.",
        (
            "Check CUDA_VISIBLE_DEVICES and --gpus or the runtime of the container. `nvidia-smi "
            "-L` must list the GPUs inside the container."
        ),
        "Setting --device cpu.",
        "CUDA errors 100, 101; torch `No CUDA GPUs are available`",
    ),
    Failure(
        "gpu_lost",
        NEEDS_HOST_REPAIR,
        "The GPU at this PCI address is gone (Xid 79 in dmesg). While nvidia-smi prints only this "
        "one line, the state of the other GPUs is unknown.",
        "Take the host out of the pool; it needs a reboot, often a full power cycle.",
        "Starting multi-GPU jobs on the GPUs that seem to work.",
        "dcgm-exporter issue 604",
    ),
    Failure(
        "gpu_ecc_error",
        NEEDS_HOST_REPAIR,
        "The GPU reported an uncorrectable memory error.",
        (
            "Drain the host, and reset the GPU or reboot. Replace the GPU if `nvidia-smi -q -d "
            "ECC,ROW_REMAPPER` shows pending or failed remaps."
        ),
        "Retrying on this GPU.",
        "Xid 48, 63, 64, 94, 95; cudaErrorECCUncorrectable",
    ),
    Failure(
        "gpu_fault",
        ErrorKind.SERVER_EXITED,
        (
            "A kernel accessed memory or executed an instruction illegally: a bug in this version "
            "with these arguments, or a failing GPU."
        ),
        (
            "Try once more on another GPU. If the fault happens there too, note the arguments, and "
            "update SGLang or change the attention backend."
        ),
        (
            "Taking the traceback's line for the place of the fault: CUDA reports errors late. "
            "CUDA_LAUNCH_BLOCKING=1 shows the place, but do not set it in a measured run."
        ),
        "CUDA errors 700, 710, 716, 719; Xid 13, 31; cuBLAS execution failed",
    ),
    Failure(
        "nvlink_error",
        NEEDS_HOST_REPAIR,
        "NVLink or NVSwitch reported an error.",
        (
            "Drain the host. `nvidia-smi nvlink -e` and dmesg (Xid 74, from Blackwell on 144 to "
            "150) name the link: reseat or replace that hardware."
        ),
        "NCCL_P2P_DISABLE=1 as a workaround: it hides a slow host.",
        "Xid 74, 144 - 150, CUDA `uncorrectable NVLink error`",
    ),
    Failure(
        "arch_unsupported",
        ErrorKind.CONFIG,
        "A kernel was not built for this GPU, or an option needs another GPU generation.",
        (
            "Install builds for this GPU (torch, sgl_kernel, flashinfer), or choose another "
            "attention or quantisation backend."
        ),
        "Retrying on the same kind of GPU.",
        "CUDA error 209 `no kernel image`, `requires SM`",
    ),
    Failure(
        "dependency_missing",
        NEEDS_HOST_REPAIR,
        (
            "A Python package or shared library of the server's environment is missing or has the "
            "wrong version."
        ),
        (
            "Install the package into the environment that runs the server. Compare versions with "
            "the release's own requirements."
        ),
        "Installing into the system's Python or into a different environment.",
        "ModuleNotFoundError, ImportError, undefined symbol",
    ),
    Failure(
        "jit_compile_failed",
        NEEDS_HOST_REPAIR,
        (
            "A kernel had to be compiled on this host and the compilation failed: no compiler, no "
            "CUDA toolkit, no ninja, or a damaged cache."
        ),
        "Install what the line names, set CUDA_HOME, or remove the cache folder that it names.",
        "Sharing a JIT cache folder between hosts with different GPUs.",
        "torch cpp_extension, triton, DeepGEMM, flashinfer",
    ),
    Failure(
        "limits_too_low",
        NEEDS_HOST_REPAIR,
        "A system limit was reached (open files, threads, locked memory).",
        "Raise the limit: `ulimit -n`, `ulimit -u`, `ulimit -l`, pids.max of the container.",
        "Lowering the load of the benchmark until it fits the limit.",
        "errno 24, 11",
    ),
)
