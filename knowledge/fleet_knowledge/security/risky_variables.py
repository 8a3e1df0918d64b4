"""Lists the environment variables that tune a server, and the variables that load code, run
programs or reach beyond the server.

Sources: source code of SGLang 0.4.1 - 0.5.23, NCCL 2.18 - 2.30, PyTorch 2.4 - 2.9, Triton 3.0 -
3.5, FlashInfer 0.2 - 0.5 and UCX 1.15 - 1.19; OpenMP 5.2, 6.4 (OMP_TOOL_LIBRARIES); CUDA's driver
(CUDA_INJECTION64_PATH); ROCm 6 (HSA_TOOLS_LIB); NVIDIA's Container Toolkit.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from fleet_knowledge.security.path_patterns import addresses_in, has_parent_reference

# By family: a library of the server reads each. Variables that do not tune (HOME, PATH, http_proxy,
# LD_…) are left out.
TUNING_FAMILIES: tuple[str, ...] = (
    *(
        "NCCL_*",
        "RCCL_*",
        "MSCCLPP_*",
        "NVSHMEM_*",
        "UCX_*",
        "GLOO_*",
        "MC_*",
        "MOONCAKE_*",
        "NIXL_*",
        "DEEPEP_*",
        "DEEP_EP_*",
    ),
    *(
        "SGLANG_*",
        "SGL_*",
        "VLLM_*",
        "FLASHINFER_*",
        "DG_*",
        "FLA_*",
        "CUTE_DSL_*",
        "NVTE_*",
        "LMCACHE_*",
        "KT_*",
    ),
    *("CUDA_*", "CUDNN_*", "CUBLAS_*", "CUBLASLT_*", "NVIDIA_TF32_OVERRIDE"),
    *(
        "HIP_*",
        "ROCR_*",
        "HSA_*",
        "AMD_*",
        "AITER_*",
        "HIPBLASLT_*",
        "ROCBLAS_*",
        "MIOPEN_*",
        "GPU_MAX_HW_QUEUES",
    ),
    *("TORCH_*", "PYTORCH_*", "TORCHINDUCTOR_*", "TORCHDYNAMO_*", "TRITON_*"),
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "NUMEXPR_*"),
    *(
        "HF_*",
        "HUGGINGFACE_*",
        "TRANSFORMERS_*",
        "TOKENIZERS_*",
        "SAFETENSORS_*",
        "TF_CPP_MIN_LOG_LEVEL",
    ),
    *(
        "PYTHONUNBUFFERED",
        "PYTHONHASHSEED",
        "PYTHONFAULTHANDLER",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONNOUSERSITE",
        "PYTHONMALLOC",
    ),
    *(
        "MALLOC_ARENA_MAX",
        "MALLOC_TRIM_THRESHOLD_",
        "MALLOC_MMAP_THRESHOLD_",
        "LANG",
        "LC_ALL",
        "TZ",
    ),
)

# Pattern → what such a variable does. Variables of no tuning family are rejected anyway; they are
# listed for the text of the message.
_LOADS_CODE: dict[str, str] = {
    "LD_*": "names libraries that every process loads",
    "GLIBC_TUNABLES": "changes the C library under every process",
    "GCONV_PATH": "names a folder of libraries that the C library loads",
    "PYTHON*": "changes what Python imports or runs",
    "PATH": "decides which programs are found",
    "HOME": "decides where programs look for settings and packages",
    "BASH_ENV": "names a script that each shell runs",
    "ENV": "names a script that each shell runs",
    "*_PLUGIN": "names a library that is loaded",
    "*_PLUGINS": "names code that is loaded",
    "*_PLUGIN_*": "decides which libraries are loaded",
    "*_INJECTION*_PATH": "names a library that is loaded",
    "NCCL_CONF_FILE": "names a file that sets further variables",
    "NCCL_IBVERBS_LIB": "names a library that is loaded",
    "OMP_TOOL_LIBRARIES": "names a library that is loaded",
    "HSA_TOOLS_*": "names a library that is loaded",
    "UCX_MODULE*": "decides which libraries are loaded",
    "UCX_GDB_COMMAND": "names a program that is run",
    "*_SO_PATH": "names a library that is loaded",
    "*_SO": "names a library that is loaded",
    "*_LIB": "names a library that is loaded",
    "*_LIBRARY": "names a library that is loaded",
    "*_LIBCUDA_PATH": "names a library that is loaded",
    "SGLANG_EXTERNAL_*": "names a Python package that is imported",
    "SGLANG_LOGGING_CONFIG_PATH": "names a file that may call any Python function",
    "SGLANG_HTTP_SERVER_APP_PATH": "names Python code that is imported",
    "SGL_FA3_KERNEL_REPO": "decides where kernels are downloaded from",
    "SGLANG_NVFP4_REPO_ROOT": "decides where code is loaded from",
    "TRITON_CACHE_MANAGER": "names a Python class that is imported",
    "TRITON_OVERRIDE_DIR": "names a folder of kernels that are loaded",
    "TRITON_KERNEL_OVERRIDE": "loads kernels in place of those that were compiled",
    "*_HOME": "decides where compilers, caches and settings are",
    "*_ROOT": "decides where code and caches are",
    "*_CACHE_DIR": "names a folder that compiled code is loaded from",
    "*_EXTENSIONS_DIR": "names a folder that compiled code is loaded from",
    "*_JIT_DIR": "names a folder that compiled code is loaded from",
    "*_CUBIN*": "decides where kernels are loaded from",
    "*_WORKSPACE_*": "names a folder that compiled code is loaded from",
    "*_NVCC*": "names a program that is run",
    "*_COMPILER*": "names a program that is run",
    "*_CLANG*": "names a program that is run",
    "TRITON_*_PATH": "names a program that is run",
    "CUDA_PATH": "decides where compilers are",
    "HIP_PATH": "decides where compilers are",
    "*FLAGS": "passes options to a compiler",
    "HF_MODULES_CACHE": "names a folder that Python imports from",
}
_REACHES_OUT: dict[str, str] = {
    "*_ENDPOINT*": "sends requests, and the tokens with them, to another address",
    "*_URL": "sends requests to another address",
    "*_PROXY": "sends requests through another address",
    "*_proxy": "sends requests through another address",
    "SSL_CERT_*": "decides which certificates are trusted",
    "*_CA_BUNDLE": "decides which certificates are trusted",
    "SGLANG_HOST_IP": "decides the address at which the server is reached",
    "NCCL_RAS_ADDR": "lets a library listen at an address",
}
_BEYOND_GPUS: dict[str, str] = {
    "NVIDIA_VISIBLE_DEVICES": "asks a container runtime for GPUs that the trial does not own",
    "NVIDIA_DRIVER_CAPABILITIES": "asks a container runtime for more features of the driver",
    "*_VISIBLE_DEVICES": "chooses GPUs, which only the agent may do",
    "GPU_DEVICE_ORDINAL": "chooses GPUs, which only the agent may do",
    "CUDA_MPS_*": "moves the server to another MPS control daemon of the GPUs",
}
_DANGERS = _LOADS_CODE | _REACHES_OUT | _BEYOND_GPUS

# The loader looks for a library name in the system's folders; a value with a slash may be any file.
_LIBRARIES_BY_NAME = (
    "NCCL_NET_PLUGIN",
    "NCCL_TUNER_PLUGIN",
    "NCCL_PROFILER_PLUGIN",
    "NCCL_ENV_PLUGIN",
    "NCCL_GIN_PLUGIN",
    "NCCL_RMA_PLUGIN",
)
# Risky with any value, a switch or a number included
_ALWAYS_RISKY: dict[str, str] = {
    "BENCHFLEET_*": "is reserved for the agent",
    "HF_DEBUG": "writes the tokens of requests into the log",
    "SGLANG_DUMPER_SERVER_PORT": "opens a port that accepts commands",
    "SGLANG_*_USE_PIP": "installs packages",
    "SGLANG_USE_PICKLE_IPC": "accepts pickled objects from other processes",
}
# Matches a risky pattern, but code is loaded from it only with trust_remote_code
_PATHS_ONLY = ("HF_HOME",)
_SWITCHES = (
    *("", "0", "1", "true", "false", "True", "False", "TRUE", "FALSE"),
    *("on", "off", "ON", "OFF", "yes", "no"),
)


def is_tuning_variable(name: str, patterns: tuple[str, ...] = TUNING_FAMILIES) -> bool:
    """Return whether a variable belongs to a family that tunes servers."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def variable_risk(name: str, value: str) -> str:
    """Return what a variable makes a server do beyond tuning it, in words that follow the
    variable's name. Return an empty text if there is no risk.

    Paths in the value are checked elsewhere.
    """
    if always := _first_match(_ALWAYS_RISKY, name):
        return always
    if addresses_in(value) and not value.startswith("secret://"):
        return "holds an address to connect to"
    return "" if _is_harmless(name, value) else _first_match(_DANGERS, name)


def _first_match(table: Mapping[str, str], name: str) -> str:
    return next((what for pattern, what in table.items() if fnmatchcase(name, pattern)), "")


def _is_harmless(name: str, value: str) -> bool:
    """Return whether a variable cannot load code. An example is a tuning variable with a plain
    number or a switch as its value.
    """
    if name in _LIBRARIES_BY_NAME:
        return bool(value) and "/" not in value and not has_parent_reference(value)
    if name in _PATHS_ONLY or name in TUNING_FAMILIES:
        return True
    return (
        is_tuning_variable(name)
        and not _first_match(_BEYOND_GPUS, name)
        and (value in _SWITCHES or value.isdecimal())
    )
