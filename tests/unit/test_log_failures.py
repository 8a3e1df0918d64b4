"""Owns the promises of the classes of failure: words of real logs in, class and line of the root
out; the table is whole and documented.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleet_controller.core.retry import rule_for
from fleet_knowledge.failure_classes import FAILURES, kind_of
from fleet_knowledge.nccl.log.nccl_failures import NCCL_FAILURES
from fleet_knowledge.server_log.diagnosis.log_diagnosis import FAILED, Diagnosis
from fleet_knowledge.server_log.log_reader import LogReader
from fleet_knowledge.server_log.symptoms.symptom import ROOT
from fleet_knowledge.server_log.symptoms.symptom_matching import LOG_SYMPTOMS, match_symptom
from fleet_protos.errors import ErrorKind

GUIDE = Path(__file__).resolve().parents[2] / "docs/failures.md"
BEYOND_WORDS = {
    "container_not_started",
    "scheduler_died",
    "launch_crashed",
}  # told from what is missing
CASES = [
    (
        "oom_kv_cache",
        "[2025-03-12 11:02:11 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
        "[2025-03-12 11:02:11] Received sigquit from a child process. It usually means the child failed.",
        "Please try to increase --mem-fraction-static",
    ),
    (
        "oom_cuda_graph",
        "[2025-03-17 09:12:52 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        "Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
        "CUDA out of memory",
    ),
    ("cuda_oom", "Scheduler hit an exception\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "2.00 GiB"),
    (
        "port_in_use",
        "[2025-09-05 00:38:34] INFO:     Application startup complete.\n[2025-09-05 00:38:34] ERROR:    [Errno 98] error while attempting"
        " to bind on address ('0.0.0.0', 30000): address already in use\n",
        "30000",
    ),
    (
        "dist_port_in_use",
        "Port is already in use. dist_init_port=5000\nValueError: dist_init_port at 5000 is not available in 30 seconds.\n",
        "5000",
    ),
    (
        "dist_port_in_use",
        "[2026-01-20 10:11:12] The port 5000 is in use, but we could not find the process that uses it.\n"
        "AttributeError: 'NoneType' object has no attribute 'pid'\n",
        "The port 5000",
    ),
    (
        "dist_port_in_use",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 5000,"
        " code: -98, name: EADDRINUSE, message: address already in use\n",
        "port: 5000",
    ),
    (
        "watchdog_timeout",
        "[2025-03-09 00:57:15 TP4] Watchdog timeout (self.watchdog_timeout=300)\n[x] Received sigquit from a child process.\nKilled\n",
        "Watchdog timeout",
    ),
    (
        "host_oom_kill",
        "RuntimeError: Rank 5 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is\n",
        "Rank 5",
    ),
    ("host_oom_kill", "Rank 5 scheduler is dead. Please check if there are relevant logs.\nExit code: -9\n", "Exit code: -9"),
    ("spec_draft_missing", "AttributeError: 'Qwen2ForCausalLM' object has no attribute 'set_embed'\n", "set_embed"),
    ("spec_args_invalid", "ValueError: Spec v2 currently only supports topk = 1 for speculative decoding.\n", "topk = 1"),
    ("spec_args_invalid", "ValueError: trtllm_mha backend only supports topk = 1 for speculative decoding.\n", "trtllm_mha"),
    (
        "spec_args_invalid",
        "ValueError: speculative_eagle_topk > 1 with page_size > 1 is unstable and produces incorrect results.\n",
        "page_size > 1",
    ),
    (
        "spec_args_invalid",
        "AssertionError: Only EAGLE and DSPARK speculative algorithms are supported for DeepseekV4ForCausalLM\n",
        "DeepseekV4ForCausalLM",
    ),
    (
        "spec_args_invalid",
        "launch_server.py: error: argument --speculative-algorithm: invalid choice: 'NGRAM' (choose from 'EAGLE')\n",
        "invalid choice",
    ),
    (
        "spec_args_invalid",
        "ValueError: EAGLE is not supported in decode attention backend torch_native\n"
        "[2026-11-29 13:00:49] Received sigquit from a child process. It usually means the child failed.\n",
        "torch_native",
    ),
    ("argument_error", "launch_server.py: error: unrecognized arguments: --tp-sise 8\n", "--tp-sise"),
    ("argument_error", "server.py: error: unrecognized arguments: x\n", "arguments: x"),
    ("hf_auth", "OSError: You are trying to access a gated repo.\n", "gated repo"),
    ("model_not_found", "OSError: no/such is not a local folder and is not a valid model identifier listed\n", "no/such"),
    ("model_not_found", "OSError: Can't load the configuration of '/no/model'. If you were trying\n", "/no/model"),
    (
        "model_not_found",
        "    raise LocalEntryNotFoundError(\nhuggingface_hub.errors.LocalEntryNotFoundError: Cannot find org/none in the cache.\n",
        "Cannot find org/none",
    ),
    ("argument_error", "sglang serve: error: unrecognized arguments: --tp-sise 3\n", "--tp-sise"),
    ("p2p_unsupported", "RuntimeError: CUDART error: peer access is not supported between these two devices\n", "peer access"),
    ("weight_load_incomplete", "ValueError: TP rank 1 could, but there are other ranks that didn't finish loading.\n", "TP rank 1"),
    ("gpu_busy_leftover", "[x TP0] The memory capacity is unbalanced. Some GPUs may be occupied by other processes.\n", "occupied"),
    ("fabric_manager_down", "RuntimeError: Unexpected error. Error 802: system not yet initialized\n", "802"),
    (
        "killed",
        "[2026-11-29 13:04:25] Decode batch, #running-req: 1\n[2026-11-29 13:04:25] Subprocess scheduler_0 (pid=10381) crashed with exit"
        " code -9. Triggering SIGQUIT for cleanup...\n[2026-11-29 13:04:25] SIGQUIT received. signum=None, frame=None.\n",
        "exit code -9",
    ),
    (
        "scheduler_crashed",
        "    assert seq_lens.shape[0] == 1\nAttributeError: 'NoneType' object has no attribute 'shape'\n[x] SIGQUIT received. signum=\n",
        "AttributeError: 'NoneType'",
    ),
    ("dependency_missing", "ModuleNotFoundError: No module named 'sgl_kernel'\n", "No module named 'sgl_kernel'"),
    (
        "oom_weights",
        "[x 10:00:00 TP0] \n[2025-01-01 10:00:00 TP0] Load weight begin. avail mem=3 GB\ntorch.OutOfMemoryError: CUDA out of memory.\n",
        "CUDA out",
    ),
    ("cuda_oom", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1 GiB\n", "HIP"),
    ("kv_pool_exhausted", "RuntimeError: Decode out of memory. Try to lower your batch size.\n", "Decode out of memory"),
    ("kv_pool_leak", "ValueError: token_to_kv_pool_allocator memory leak detected! available_size=1\n", "leak"),
    (
        "host_memory_short",
        "ValueError: Not enough host memory available. Requesting 200.00 GB but only have 90.00 GB free.\n",
        "host memory",
    ),
    ("host_oom_kill", "kernel: Out of memory: Killed process 77 (python3) total-vm:1kB\n", "Killed process"),
    ("dist_port_in_use", "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5557')\n", "5557"),
    (
        "dist_init_timeout",
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.\n",
        "1/2",
    ),
    (
        "hf_unreachable",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded\n",
        "443",
    ),
    ("model_unsupported", "ValueError: Model architectures ['NewForCausalLM'] are not supported for now.\n", "NewForCausalLM"),
    ("weights_corrupt", "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer\n", "header"),
    ("parallel_size_invalid", "ValueError: 28 is not divisible by 8\n", "28"),
    ("argument_error", "AssertionError: SGLANG_CPU_OMP_THREADS_BIND is not set, in this case, the total number of ranks\n", "OMP"),
    ("shm_too_small", "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'\n", "/dev/shm"),
    ("disk_full", "OSError: [Errno 28] No space left on device: '/cache/models/x'\n", "/cache"),
    ("limits_too_low", "OSError: [Errno 24] Too many open files\n", "open files"),
    ("gpu_lost", "NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n", "79"),
    ("gpu_ecc_error", "RuntimeError: CUDA error: uncorrectable ECC error encountered\n", "ECC"),
    (
        "gpu_fault",
        "RuntimeError: CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported\n",
        "illegal",
    ),
    ("nvlink_error", "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution\n", "NVLink"),
    ("driver_mismatch", "Failed to initialize NVML: Driver/library version mismatch\n", "NVML"),
    (
        "driver_mismatch",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver\n",
        "803",
    ),
    ("no_gpu", "RuntimeError: No CUDA GPUs are available\n", "No CUDA"),
    ("arch_unsupported", "RuntimeError: CUDA error: no kernel image is available for execution on the device\n", "kernel image"),
    ("jit_compile_failed", "RuntimeError: Ninja is required to load C++ extensions\n", "Ninja"),
    ("nan_logits", "[2025-01-01 10:00:00 TP0] Detected errors during sampling! NaN in the logits.\n", "NaN"),
    (
        "nccl_timeout",
        "[rank3]:[E] ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)\n",
        "WorkNCCL",
    ),
    (
        "nccl_peer_lost",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n",
        "remote process",
    ),
    (
        "nccl_init_failed",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error, NCCL version 2.21.5\n",
        "unhandled system",
    ),
    ("spec_draft_missing", "ValueError: speculative_draft_model_path is required for EAGLE3\n", "required"),
    ("detokenizer_crashed", "DetokenizerManager hit an exception: Traceback (most recent call last):\nKeyError: 'x'\n", "KeyError"),
    ("launch_crashed", "Traceback (most recent call last):\n  File \"x\", line 1\nKeyError: 'tokenizer'\n", "KeyError"),
]  # fmt: skip


def told(log: str) -> Diagnosis:
    reader = LogReader()
    reader.feed(log.encode())
    return reader.finish()


@pytest.mark.parametrize(("failure_class", "log", "cause"), CASES)
def test_a_death_is_explained_from_the_log(failure_class: str, log: str, cause: str) -> None:
    diagnosis = told(log)
    assert (diagnosis.state, diagnosis.failure_class) == (FAILED, failure_class)
    assert cause in diagnosis.cause_line
    assert "\n" not in diagnosis.cause_line


@pytest.mark.parametrize(
    "line",
    [
        "[x TP0] Setup Custom allreduce failed with nvmlDeviceGetP2PStatus. To silence this, specify --disable-custom-all-reduce.",
        '    raise RuntimeError("Not enough memory. Please try to increase --mem-fraction-static.")',
        "[2026-01-01 10:00:00] Ignore import error when loading sglang.srt.models.x: No module named 'y'",
        "[2026-01-01 10:00:00 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=True)",
        "[2026-01-01 10:00:00 TP0] Decode out of memory happened. #retracted_reqs: 3, #new_token_ratio: 0.62 -> 1.0",
        "[2026-01-01 10:00:00] Receive: obj=GenerateReqInput(text='CUDA out of memory. Killed')",
        "h:1:1 [0] NCCL INFO NET/IB : No device found.",
        "server_args=ServerArgs(trust_remote_code=True, watchdog_timeout=300)",
    ],
)
def test_words_that_sound_like_a_failure_are_none(line: str) -> None:
    assert told(line + "\n").failure_class == ""


def test_the_root_is_told_and_not_what_followed_on_other_ranks() -> None:
    log = (
        "[2025-05-01 10:00:00 TP3] Watchdog timeout (self.watchdog_timeout=300)\n"
        "[2025-05-01 10:00:01 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        "ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading.\n"
        "[2025-05-01 10:00:02 TP2] Scheduler hit an exception: Traceback (most recent call last):\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        "[2025-05-01 10:00:03] Received sigquit from a child process. It usually means the child failed.\nKilled\n"
    )
    assert (told(log).failure_class, told(log).rank) == ("cuda_oom", "TP2")


def test_what_a_server_outlived_is_a_warning() -> None:
    log = "[2025-05-01 10:00:00 TP0] The memory capacity is unbalanced. Some GPUs may be occupied by other processes.\n"
    ready = "[2025-05-01 10:02:00] The server is fired up and ready to roll!\n"
    assert told(log).failure_class == "gpu_busy_leftover"
    assert (told(log + ready).state, [warned.code for warned in told(log + ready).warnings]) == (
        "ready",
        ["gpu_busy_leftover"],
    )


def test_a_launch_after_a_failed_one_counts_and_remembers_it() -> None:
    start = "[2025-05-01 10:00:00] server_args=ServerArgs(model_path='m')\n"
    crash = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    diagnosis = told(
        start + crash + start + "[2025-05-01 10:05:00 TP0] Load weight begin. avail mem=9 GB\n"
    )
    assert (diagnosis.state, diagnosis.phase, diagnosis.launches) == ("starting", "load_weight", 2)
    assert [failure["failure_class"] for failure in diagnosis.details["earlier_failures"]] == [
        "oom_kv_cache"
    ]


def test_a_server_that_is_stopped_has_not_failed() -> None:
    log = "[2025-05-01 10:02:00] The server is fired up and ready to roll!\n[2025-05-01 10:03:00] INFO:     Shutting down\n"
    assert told(log).state == "stopped"


def test_every_wording_names_a_class_that_there_is() -> None:
    assert {symptom.failure_class for symptom in LOG_SYMPTOMS} <= set(FAILURES)
    assert all(symptom.source for symptom in LOG_SYMPTOMS)


def test_every_class_can_be_told() -> None:
    worded = {symptom.failure_class for symptom in LOG_SYMPTOMS} | set(NCCL_FAILURES)
    assert (
        set(FAILURES) - worded - BEYOND_WORDS - {"oom_weights"} == set()
    )  # oom_weights: cuda_oom while weights are loaded


def test_the_quick_look_passes_every_line_that_the_table_knows() -> None:
    lines = [
        line
        for _, log, _ in CASES
        for line in log.splitlines()
        if any(s.pattern.search(line) and s.distance == ROOT for s in LOG_SYMPTOMS)
    ]
    assert len(lines) > 30
    assert [
        line
        for line in lines
        if match_symptom(re.sub(r"^\[[^\]]*\] ", "", line)) is None and not line[:1].isspace()
    ] == []


@pytest.mark.parametrize("name", sorted(FAILURES))
def test_retryable_means_what_the_scheduler_does(name: str) -> None:
    assert FAILURES[name].retryable == (rule_for(FAILURES[name].kind).retries > 0)


@pytest.mark.parametrize(
    ("failure_class", "kind"),
    [
        ("hf_auth", ErrorKind.CONFIG),
        ("oom_kv_cache", ErrorKind.SERVER_OOM),
        ("port_in_use", ErrorKind.SERVER_LAUNCH),
        ("gpu_lost", ErrorKind.DEPLOY_FAILED),
        ("scheduler_crashed", ErrorKind.SERVER_EXITED),
        ("unknown", ErrorKind.SERVER_EXITED),
    ],
)
def test_what_fails_again_is_not_tried_again(failure_class: str, kind: ErrorKind) -> None:
    assert kind_of(failure_class) is kind


def test_the_guide_tells_each_class_as_the_table_does() -> None:
    sections = re.findall(
        r"^### `(\w+)`\n- Cause: (.*)\n- Cure: (.*)\n- Do not: (.*)\n- Retry: (yes|no) \(`(\w+)`\)\n- Source: (.*)$",
        GUIDE.read_text(),
        re.M,
    )
    written = [
        (
            row.name,
            row.cause,
            row.cure,
            row.avoid,
            "yes" if row.retryable else "no",
            row.kind.name.lower(),
            row.source,
        )
        for row in FAILURES.values()
    ]
    assert sections == written
