"""Lists the symptoms of failures of memory, GPUs, drivers and the host."""

from __future__ import annotations

from fleet_knowledge.release import VersionRange
from fleet_knowledge.server_log.symptoms.symptom import AFTER, symptom

MEMORY_SYMPTOMS = (
    symptom(
        "oom_cuda_graph",
        r"Capture (?:\w+ )*(?:cuda|CUDA) graph failed: .*(?:out of memory|OutOfMemory)",
        "sglang pull 3430",
    ),
    symptom(
        "oom_kv_cache",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "model_runner.py 0.2 - 0.5.23",
    ),
    symptom(
        "oom_kv_cache",
        "No KV cache memory left|max_total_num_tokens.*(?:<= ?0|is not positive)|Not enough "
        "(?:GPU )?memory (?:for|to allocate) (?:the "
        ")?KV|Loaded weights (?:left|leave) no (?:GPU )?memory for the KV",
        "model_runner.py",
    ),
    symptom(
        "host_memory_short",
        "Not enough host memory available",
        "memory_pool_host.py",
    ),
    symptom(
        "host_memory_short",
        "DefaultCPUAllocator: can't allocate memory",
        "torch 2.x; seen for the KV cache of a CPU server under a memory limit",
        cure=(
            "Lower --max-total-tokens or --mem-fraction-static of a CPU server, raise its memory "
            "limit, or free host memory."
        ),
    ),
    symptom(
        "host_memory_short",
        r"std::bad_alloc|\[Errno 12\] Cannot allocate memory|^MemoryError\b",
        "C++ and Python of any version",
        cure="Free host memory or raise the container's limit. It also helps to load from a disk "
        "instead of tmpfs, and to lower --hicache-size and the number of loading threads.",
    ),
    symptom(
        "workspace_too_small",
        (
            r"Failed to allocate memory for \w+ with size \d+.*AlignedAllocator|Buffer overflow "
            r"when allocating memory for \w+"
        ),
        "flashinfer allocator.h",
    ),
    symptom(
        "cuda_oom",
        r"(?:CUDA|HIP|NPU|XPU) out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out "
        r"of memory|"
        r"cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY",
        "torch 2.x",
    ),
    symptom(
        "cuda_oom",
        r"CUBLAS_STATUS_NOT_INITIALIZED|hipErrorOutOfMemory|NPU function error:.*out of memory",
        "cublasCreate on a full GPU; HIP, torch_npu",
        AFTER,
    ),
    symptom(
        "kv_pool_exhausted",
        r"RuntimeError: (?:Prefill|Decode|Extend) out of memory\b",
        "schedule_batch.py, mem_cache/common.py",
        versions=VersionRange("0.2.0", "0.5.23"),
    ),
    symptom(
        "kv_pool_leak",
        (
            r"(?:pool|token_to_kv\w*|req_to_token\w*|tree cache).*memory leak detected|KV cache "
            r"pool leaks"
        ),
        "scheduler.py",
    ),
    symptom(
        "host_oom_kill",
        (
            r"[Rr]ank (?P<rank>\d+) scheduler died during initialization \(exit code: "
            r"(?P<exit_code>-9)\)"
        ),
        "engine.py",
        versions=VersionRange("0.5.10"),
    ),
    symptom(
        "host_oom_kill",
        r"oom-kill\b|killed by the OOM killer|Out of memory: Killed process|Memory cgroup out of "
        r"memory|OOMKilled|oom_reaper"
        r"|oom_kill event|^srun: error: .*: Out Of Memory"
        r"|cannot allocate memory$",
        "kernel, Kubernetes, slurm",
    ),
    symptom(
        "host_oom_kill",
        r"^Exit code: (?P<exit_code>-9)\b",
        "engine.py",
        AFTER,
        versions=VersionRange("0.4.0", "0.5.9"),
    ),
)

HOST_SYMPTOMS = (
    symptom(
        "custom_all_reduce_failed",
        (
            r"custom_all_reduce\w*\.(?:cuh|cu|hip|h):\d+|(?:hip|cuda)Ipc(?:Open|"
            r"Get)MemHandle.*(?:fail|error|invalid)"
        ),
        "sgl-kernel and jit_kernel custom_all_reduce.cuh; sglang issue 11957, pull 27948",
    ),
    symptom(
        "p2p_unsupported",
        "peer access is not supported between these two devices|cudaErrorPeerAccessUnsupported",
        "sglang issue 4814",
    ),
    symptom(
        "fabric_manager_down",
        r"Error 802\b|system not yet initialized|cudaErrorSystemNotReady",
        "CUDA 802",
    ),
    symptom(
        "driver_mismatch",
        r"Error 80[34]\b|Driver/library version mismatch|driver version is insufficient|"
        r"provided PTX was compiled with an unsupported toolchain|nvidia-container-cli: "
        r"requirement error|"
        r"NVIDIA driver on your system is too old|system has unsupported display driver|forward "
        r"compatibility was attempted",
        "CUDA 35, 803, 804",
    ),
    symptom(
        "no_gpu",
        r"Error 10[01]\b|No (?:CUDA|HIP|XPU|NPU) (?:GPU|device)s are available|Failed to "
        r"initialize NVML: Unknown Error|"
        r"no CUDA-capable device is detected|invalid device ordinal|"
        r"Found no NVIDIA driver|Torch not compiled with CUDA|No supported device found|CUDA is "
        r"not available|"
        r"^RuntimeError: No accelerator \(",
        "CUDA 100, 101",
    ),
    symptom(
        "gpu_lost",
        r"Unable to determine the device handle for GPU ?(?P<bus_id>[\da-fA-F]{3,"
        r"8}:[\da-fA-F]{2}:[\da-fA-F]{2}\.\d)|"
        r"GPU is lost|Xid\D{0,40}\b79\b|fallen off the bus|GPU has fallen",
        "nvidia-smi, Xid 79",
    ),
    symptom(
        "gpu_fault",
        r"Xid[^,]{0,40}?: ?(?:119|120),|GPU requires reset",
        "Xid 119, 120: the GPU's own controller (GSP)",
        cure=(
            "The GPU's own controller stopped answering the driver: drain the host, reset the GPU "
            "or reboot, and update the driver."
        ),
    ),
    symptom(
        "gpu_ecc_error",
        (
            "uncorrectable (?:ECC|memory)|Xid[^,]{0,40}?: ?(?:48|63|64|92|94|95),|"
            "cudaErrorECCUncorrectable|[Dd]ouble[- ][Bb]it"
        ),
        "Xid 48, 94",
    ),
    symptom(
        "nvlink_error",
        "uncorrectable NVLink|Xid[^,]{0,40}?: ?(?:74|14[4-9]|150),|"
        r"SXid[^,]{0,40}?: ?\d+, Fatal|NVLink.*(?:fatal|failure)|cudaErrorNvlinkUncorrectable",
        "Xid 74; 144 - 150 from Blackwell on",
    ),
    symptom(
        "gpu_fault",
        "CUDA error: (?:an illegal memory access|misaligned address|unspecified launch failure|"
        "device-side assert|an "
        "illegal instruction|invalid program counter|operation not permitted|the launch timed "
        "out)|illegal memory access "
        "was encountered|device-side assert triggered|cudaErrorIllegalAddress|"
        "cudaErrorLaunchFailure|Xid[^,]{0,40}?: "
        "?(?:13|31|43),|HSA_STATUS_ERROR|Memory access fault by GPU",
        "CUDA 700",
    ),
    symptom(
        "gpu_fault",
        (
            r"CUBLAS_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)|(?:CUDA|HIP) error: "
            r"unknown error|NPU function error"
        ),
        "cuBLAS, torch_npu",
        AFTER,
    ),
    symptom(
        "gpu_busy_leftover",
        r"CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable",
        "CUDA 46: compute mode is exclusive, or the GPU is being reset",
    ),
    symptom(
        "gpu_busy_leftover",
        "memory capacity is unbalanced",
        "model_runner.py; its check can be set to warn only",
    ),
    symptom(
        "arch_unsupported",
        r"no kernel image is available|(?:CUDA|HIP) error: invalid device function|"
        r"requires (?:SM|compute capability)|"
        r"is not compatible with the current PyTorch installation|(?:only|not) supported on (?:SM|"
        r"Hopper|Blackwell|Ampere)|"
        r"compute capability (?:of )?\d|torch\.float8_e4m3fn.*not supported|fp8e4nv not supported",
        "CUDA 209, attention backends",
    ),
    symptom(
        "arch_unsupported",
        r"out of resource: shared memory|OutOfResources: ",
        "triton; sglang issues 2384, 5995, 29149",
        cure="A kernel's tile needs more shared memory than this GPU has: use another attention, "
        "MoE or quantisation backend, or update SGLang. GPU memory is not the problem.",
    ),
    symptom(
        "jit_compile_failed",
        r"fatal error: Python\.h: No such file",
        "triton; sglang on hosts without Python's headers",
        cure=(
            "Install the headers of the server's Python (python3-dev or python3.x-dev of the same "
            "version)."
        ),
    ),
    symptom(
        "jit_compile_failed",
        r"nvcc fatal *: Unsupported gpu architecture|NVCC version should be",
        "nvcc, DeepGEMM jit/compiler.hpp",
        cure=(
            "The CUDA toolkit on this host is too old for the GPU or the kernels: install a newer "
            "one and set CUDA_HOME to it."
        ),
    ),
    symptom(
        "jit_compile_failed",
        r"Corrupted JIT cache|CUDA_ERROR_INVALID_IMAGE|device kernel image is invalid",
        "DeepGEMM jit/kernel_runtime.hpp, handle.hpp",
        cure="Remove the JIT cache folder (the one that the line names, or ~/.cache/deep_gemm), "
        "check that its disk is not full, and start again.",
    ),
    symptom(
        "jit_compile_failed",
        r"fatal error: \S+\.(?:h|hpp|cuh): No such file|^LLVM ERROR: |"
        r"^(?:ninja|nvcc|gcc|g\+\+|cc|c\+\+|clang\S*|ld\S*|collect2): (?:fatal )?error: |"
        r"nvcc fatal|No such file or directory: '(?:\S*/)?(?:ninja|nvcc|gcc|g\+\+)'",
        "compilers, LLVM in triton; flashinfer issue 4410",
    ),
    symptom(
        "jit_compile_failed",
        (
            r"Ninja build failed|ninja: build stopped|'(?:[^' ]*/)?(?:ninja|nvcc|gcc|g\+\+|cc|"
            r"clang)'.*non-zero exit status"
        ),
        "flashinfer jit/cpp_ext.py, triton runtime/build.py",
        AFTER,
    ),
    symptom(
        "jit_compile_failed",
        "Ninja is required|Error building extension|nvcc(?: not found|: not found|.* failed)|ptxas "
        "(?:fatal|error)|CUDA_HOME environment variable is not set|Could not find nvcc|NVCC "
        "compilation "
        "failed|RuntimeError: .*(?:[Cc]ompil(?!er_depend)).*[Ff]ail|Failed to find C compiler|"
        "PTXASError",
        "torch cpp_extension, triton, flashinfer",
    ),
    symptom(
        "shm_too_small",
        r"OSError: \[Errno 28\].*(?:psm_|shm|torch_)",
        "multiprocessing.shared_memory",
    ),
    symptom(
        "disk_full",
        r"No space left on device|\[Errno 28\]|Disk quota exceeded",
        "errno 28",
        AFTER,
    ),
    symptom(
        "limits_too_low",
        r"\[Errno 24\]|Too many open files|can't start new thread|Cannot create thread|"
        r"\[Errno 11\] Resource temporarily unavailable|Failed to .*memlock|ulimit -l",
        "errno 24, 11",
    ),
    symptom(
        "dependency_missing",
        r"^(?:ModuleNotFoundError|ImportError): |undefined symbol|cannot open shared object file|"
        r"(?:requires|"
        r"need) (?:flashinfer|sgl[_-]kernel|flash[_-]attn|transformers|torch)\b.*(?:version|>=)|"
        r"is installed with version .* which is less than the minimum|"
        r"with minimum required version \S+ is not installed|PackageNotFoundError",
        "Python, ld.so; server checks of versions",
    ),
    symptom(
        "dependency_missing",
        (
            r"version `GLIBC(?:XX)?_[\d.]+' not found|has no attribute '\w+'.*_OpNamespace|"
            r"'_OpNamespace' '\w+' object has no attribute"
        ),
        "ld.so; torch.ops of a kernel package of another version",
        cure="A library was built for a newer system or another version: use the release's "
        "container image, or install the kernel package version that this SGLang requires.",
    ),
    symptom(
        "dependency_missing",
        r"\[sgl_kernel\] CRITICAL: Could not load",
        "sgl_kernel/load_utils.py",
        AFTER,
    ),
    symptom(
        "dependency_missing",
        (
            r"data did not match any variant of untagged enum|Couldn't instantiate the backend "
            r"tokenizer"
        ),
        "tokenizers, transformers",
        cure=(
            "tokenizers and transformers are older than the model's tokenizer.json: install the "
            "versions that this SGLang requires."
        ),
    ),
    symptom("shm_too_small", r"^Bus error", "a mapped file of /dev/shm that has no room", AFTER),
)
