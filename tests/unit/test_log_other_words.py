"""Owns the promises about wordings of other programs in a server's log: compilers, CUDA, NCCL,
slurm, Kubernetes, the hub.
"""

from __future__ import annotations

import pytest

from fleet_knowledge.server_log.diagnosis.log_diagnosis import FAILED, Diagnosis
from fleet_knowledge.server_log.log_reader import LogReader

CRASH = "[2025-06-01 10:00:00 TP2] Scheduler hit an exception: Traceback (most recent call last):\n"
FAULTS = [
    (
        "oom_kv_cache",
        "RuntimeError: Not enough memory to allocate KV cache.",
        "--mem-fraction-static",
    ),
    (
        "cuda_oom",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "--mem-fraction-static",
    ),
    (
        "gpu_fault",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle )`",
        "another GPU",
    ),
    ("host_memory_short", "OSError: [Errno 12] Cannot allocate memory", "container's limit"),
    (
        "host_memory_short",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "container's limit",
    ),
    (
        "workspace_too_small",
        "RuntimeError: Error in function 'Plan' at a.cuh: Failed to allocate memory for t with size 9 in AlignedAllocator",
        "SGLANG_FLASHINFER_WORKSPACE_SIZE",
    ),
    (
        "custom_all_reduce_failed",
        "RuntimeError: Runtime check failed at /s/jit_kernel/include/custom_all_reduce.cuh:31: CUDA error: invalid argument",
        "--disable-custom-all-reduce",
    ),
    ("expert_exchange_failed", "RuntimeError: DeepEP error: timeout (dispatch CPU)", "ended first"),
    (
        "jit_compile_failed",
        "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
        "CUDA_HOME",
    ),
    (
        "jit_compile_failed",
        "subprocess.CalledProcessError: Command '['/usr/bin/gcc', 'u.c']' returned non-zero exit status 1.",
        "CUDA_HOME",
    ),
    (
        "jit_compile_failed",
        "/tmp/x/cuda_utils.c:7:10: fatal error: Python.h: No such file or directory",
        "python3-dev",
    ),
    (
        "jit_compile_failed",
        "nvcc fatal   : Unsupported gpu architecture 'compute_121a'",
        "newer one",
    ),
    (
        "jit_compile_failed",
        "RuntimeError: Assertion error (k.hpp:4): Corrupted JIT cache directory (missing kernel.cubin): /c/k",
        "cache folder",
    ),
    (
        "jit_compile_failed",
        "ninja: error: loading 'build.ninja': No such file or directory",
        "line names",
    ),
    (
        "arch_unsupported",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 9, Hardware limit: 8.",
        "GPU memory is not the problem",
    ),
    ("arch_unsupported", "RuntimeError: HIP error: invalid device function", "Install builds"),
    (
        "driver_mismatch",
        "RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        "driver",
    ),
    (
        "no_gpu",
        "RuntimeError: No accelerator (CUDA, XPU, HPU) is available.",
        "CUDA_VISIBLE_DEVICES",
    ),
    ("no_gpu", "RuntimeError: No HIP GPUs are available", "--gpus"),
    (
        "gpu_busy_leftover",
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "compute-apps",
    ),
    (
        "gpu_fault",
        "NVRM: Xid (PCI:0000:19:00): 119, pid=7, name=sglang::schedul, Timeout waiting for RPC from GPU0 GSP!",
        "reset",
    ),
    (
        "nvlink_error",
        "NVRM: Xid (PCI:0000:dc:00): 149, pid=7, name=python3, NETIR_LINK_EVT Fatal",
        "nvlink -e",
    ),
    (
        "dependency_missing",
        "OSError: /l/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by /f/sampling.so)",
        "container image",
    ),
    (
        "dependency_missing",
        "[sgl_kernel] CRITICAL: Could not load any common_ops library!",
        "release",
    ),
    (
        "dependency_missing",
        "AttributeError: '_OpNamespace' 'sgl_kernel' object has no attribute 'mm'",
        "kernel package",
    ),
    (
        "dependency_missing",
        "Exception: data did not match any variant of untagged enum ModelWrapper at line 7",
        "tokenizer.json",
    ),
    (
        "dependency_missing",
        "Exception: flashinfer_python with minimum required version 0.2.5 is not installed.",
        "Install",
    ),
    ("model_unsupported", "KeyError: 'model.layers.3.mlp.experts.w2_weight_scale'", "quantisation"),
    (
        "weights_corrupt",
        'FileNotFoundError: No such file or directory: "/m/model-00002-of-00004.safetensors"',
        "is missing: copy it",
    ),
    (
        "argument_error",
        "ValueError: torch.bfloat16 is not supported for quantization method awq. Supported dtypes: [torch.float16]",
        "--dtype",
    ),
    (
        "hf_unreachable",
        "OSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it",
        "local disk",
    ),
    (
        "hf_unreachable",
        "httpx.HTTPStatusError: Client error '429 Too Many Requests' for url 'https://huggingface.co/x'",
        "Try again",
    ),
    (
        "hf_auth",
        "httpx.HTTPStatusError: Client error '401 Unauthorized' for url 'https://huggingface.co/o/m'",
        "HF_TOKEN",
    ),
    (
        "model_not_found",
        "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach the hub: offline mode is enabled.",
        "HF_HUB_OFFLINE",
    ),
    (
        "dist_init_timeout",
        "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address",
        "log of every host",
    ),
    (
        "nccl_no_interface",
        "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: bond7",
        "GLOO_SOCKET_IFNAME",
    ),
    (
        "weights_corrupt",
        "OSError: It looks like the config file at '/m/config.json' is not a valid JSON file.",
        "copy it again",
    ),
    (
        "model_not_found",
        "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://www.modelscope.cn/o/m",
        "spelling",
    ),
    (
        "nan_logits",
        "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0",
        "weight files",
    ),
    (
        "host_oom_kill",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.",
        "dmesg",
    ),
    ("host_oom_kill", "      Reason:       OOMKilled", "dmesg"),
    (
        "container_not_started",
        "docker: Error response from daemon: could not select device driver with capabilities: [[gpu]].",
        "nvidia-ctk",
    ),
]


def told(log: str) -> Diagnosis:
    reader = LogReader()
    reader.feed(log.encode())
    return reader.finish()


@pytest.mark.parametrize(("failure_class", "line", "says"), FAULTS)
def test_the_words_of_another_program_tell_the_class_and_what_helps(
    failure_class: str, line: str, says: str
) -> None:
    diagnosis = told(
        f"{CRASH}{line}\n[2025-06-01 10:00:01] Received sigquit from a child process. It usually means the child failed.\n"
    )
    assert (diagnosis.state, diagnosis.failure_class, diagnosis.rank) == (
        FAILED,
        failure_class,
        "TP2",
    )
    assert diagnosis.cause_line == " ".join(line.split())
    assert says in diagnosis.hint


def test_what_a_compiler_says_is_nearer_than_that_it_ended() -> None:
    ended = "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.\n"
    compiler = "a.cu:3:10: fatal error: curand_kernel.h: No such file or directory\n"
    assert (
        told(
            f"{CRASH}{ended}RuntimeError: Ninja build failed. Ninja output:\n{compiler}"
        ).cause_line
        == compiler.strip()
    )


def test_a_bare_assertion_is_told_with_what_was_asserted() -> None:
    heads = told(f"{CRASH}    assert self.total_num_heads % tp_size == 0\nAssertionError\n")
    assert (heads.failure_class, heads.rank) == ("parallel_size_invalid", "TP2")
    assert (
        told(
            f"{CRASH}    assert tp_size % self.total_num_kv_heads == 0\nAssertionError\n"
        ).failure_class
        == "parallel_size_invalid"
    )
    other = told(f"{CRASH}    assert self.chunked_req is None\nAssertionError\n")
    assert (other.failure_class, other.cause_line) == (
        "scheduler_crashed",
        "AssertionError: assert self.chunked_req is None",
    )


@pytest.mark.parametrize(
    ("error", "failure_class"),
    [
        ("802: system not yet initialized", "fabric_manager_down"),
        ("803: unsupported display driver", "driver_mismatch"),
    ],
)
def test_why_no_gpu_was_seen_is_told_by_the_warning_before(error: str, failure_class: str) -> None:
    warning = f"UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error {error} (Triggered internally)\n"
    assert (
        told(
            warning + "RuntimeError: No accelerator (CUDA, XPU, HPU) is available.\n"
        ).failure_class
        == failure_class
    )
    started = "[2025-06-01 10:00:00] server_args=ServerArgs(device='cpu')\n"
    assert told(started + warning).state == "starting"


def test_a_lost_peer_that_was_raised_is_the_class_and_not_the_crash_around_it() -> None:
    lost = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:9] Connection closed by peer [10.0.0.4]:24011\n"
    assert told(CRASH + lost).failure_class == "nccl_peer_lost"
    later = (
        CRASH
        + "KeyError: 'own'\n[2025-06-01 10:00:01 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        + lost
    )
    assert (told(later).failure_class, told(later).cause_line) == (
        "scheduler_crashed",
        "KeyError: 'own'",
    )


def test_ranks_that_part_after_a_stop_are_no_failure() -> None:
    stop = "[2025-06-01 10:00:00] The server is fired up and ready to roll!\n[2025-06-01 10:01:00] INFO:     Shutting down\n"
    parting = "[rank1]:[W601 10:01:01.5 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=6, addr=[h]:1): Broken pipe\n"
    assert told(stop + parting).state == "stopped"
    assert told(parting).failure_class == "nccl_peer_lost"


def test_a_job_that_slurm_ended_is_stopped() -> None:
    ready = "[2025-06-01 10:00:00] The server is fired up and ready to roll!\n"
    diagnosis = told(
        ready
        + "slurmstepd: error: *** JOB 7 ON g1 CANCELLED AT 2025-06-01T11:00:00 DUE TO TIME LIMIT ***\n"
    )
    assert (diagnosis.state, diagnosis.failure_class) == ("stopped", "")


def test_a_warning_before_the_launch_came_on_ended_nothing() -> None:
    warning = "[2025-06-01 10:00:00] Warning: User-specified context_length (9) is greater than the derived context_length (8).\n"
    assert (
        told(warning + "[2025-06-01 10:00:05 TP0] Load weight begin. avail mem=78.38 GB\n").state
        == "starting"
    )
    assert told("ValueError: " + warning.split("] ")[1]).failure_class == "argument_error"


def test_a_health_check_without_any_batch_says_that_the_server_may_hang() -> None:
    batch = "[2025-06-01 10:00:14 TP0] Decode batch, #running-req: 3, #token: 9, gen throughput (token/s): 8.0, #queue-req: 8\n"
    times = "tic start time: 10:09:54. last_heartbeat time: 10:00:14\n"
    check = f"[2025-06-01 10:10:14] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds. {times}"
    silent, busy = told(batch + check), told(batch + check + batch)
    assert (silent.state, busy.state) == ("busy", "busy")
    assert "for 600 s" in silent.hint and "batches continue" not in silent.hint
    assert "batches continue" in busy.hint


@pytest.mark.parametrize("key", ["log", "line", "message", "msg"])
def test_a_line_inside_json_is_read_as_the_line(key: str) -> None:
    crash = CRASH.strip()
    log = f'{{"ts": 1, "{key}": "{crash}"}}\n{{"ts": 2, "{key}": "torch.OutOfMemoryError: CUDA out of memory."}}\n'
    assert (told(log).failure_class, told(log).rank, told(log).cause_line) == (
        "cuda_oom", "TP2", "torch.OutOfMemoryError: CUDA out of memory.",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("frame", "failure_class"),
    [
        ("/s/srt/server_args.py", "argument_error"),
        ("/s/srt/configs/model_config.py", "launch_crashed"),
    ],
)
def test_what_the_check_of_arguments_raised_is_about_arguments(
    frame: str, failure_class: str
) -> None:
    frames = f'  File "/s/srt/server_args.py", line 9, in f\n  File "{frame}", line 7, in g\n'
    log = f"Traceback (most recent call last):\n{frames}ValueError: no\n"
    assert told(log).failure_class == failure_class
    assert told(log + log).failure_class == failure_class


@pytest.mark.parametrize(
    "end", ["srv-1 exited with code 143", "srv-1 exited with code 137", "Killed"]
)
def test_how_a_stopped_server_ended_is_no_failure(end: str) -> None:
    ready = "[2025-06-01 10:00:00] The server is fired up and ready to roll!\n"
    asked = "[2025-06-01 10:01:00] SIGTERM received. signum=15 frame=None. Draining requests and shutting down...\n"
    assert told(f"{ready}{asked}{end}\n").state == "stopped"
    assert told(ready + end + "\n").state == ("stopped" if "143" in end else "failed")


def test_a_killed_detokenizer_is_a_killed_process() -> None:
    line = "[2025-06-01 10:00:00] Subprocess detokenizer (pid=7) crashed with exit code -9. Triggering SIGQUIT for cleanup...\n"
    assert told(line).failure_class == "killed"


@pytest.mark.parametrize(
    "line",
    [
        "'(ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co')\"), '(Request ID: x)')' thrown while requesting HEAD https://hf.co/o/m",
        "[2025-06-01 10:00:01 TP0] Failed to import from vllm._C with ImportError('libcudart.so.12: cannot open shared object file')",
    ],
)
def test_what_is_tried_again_or_done_without_is_no_failure(line: str) -> None:
    assert (
        told(f"[2025-06-01 10:00:00] server_args=ServerArgs(model_path='m')\n{line}\n").state
        == "starting"
    )


def test_a_rank_that_waited_for_the_weights_of_others_is_not_told_as_a_timeout() -> None:
    noticed = "RuntimeError: Timed out waiting 600000ms for recv operation to complete\n"
    told_by = "ValueError: TP rank 2 could finish the model loading, but there are other ranks that didn't finish loading.\n"
    assert told(CRASH + noticed).failure_class == "nccl_timeout"
    both = told(CRASH + noticed + told_by)
    assert (both.failure_class, both.rank, both.details["healthy_rank"]) == (
        "weight_load_incomplete",
        "",
        "TP2",
    )
