"""Owns the promises of the reading of dead servers' logs: words of real SGLang logs in, failure class and cause out."""

from __future__ import annotations

import pytest

from fleet_agent.engines.sglang import explain as explaining
from fleet_agent.engines.sglang.explain import explain
from fleet_protos.errors import ErrorKind

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
        "Capture cuda graph failed",
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
        "scheduler_crashed",
        "[2026-11-29 13:04:25] Decode batch, #running-req: 1\n[2026-11-29 13:04:25] Subprocess scheduler_0 (pid=10381) crashed with exit"
        " code -9. Triggering SIGQUIT for cleanup...\n[2026-11-29 13:04:25] SIGQUIT received. signum=None, frame=None.\n",
        "exit code -9",
    ),
    (
        "scheduler_crashed",
        "    assert seq_lens.shape[0] == 1\nAttributeError: 'NoneType' object has no attribute 'shape'\n[x] SIGQUIT received. signum=\n",
        "AttributeError: 'NoneType'",
    ),
    ("unknown", "ModuleNotFoundError: No module named 'sgl_kernel'\n", "No module named 'sgl_kernel'"),
    ("unknown", "", ""),
]  # fmt: skip


@pytest.mark.parametrize(("failure_class", "log", "cause"), CASES)
def test_a_death_is_explained_from_the_log(failure_class: str, log: str, cause: str) -> None:
    found, line = explain(log, 1)
    assert found == failure_class
    assert cause in line
    assert "\n" not in line


def test_a_silent_kill_says_who_may_have_done_it() -> None:
    failure_class, cause = explain("ready to roll", -9)
    assert failure_class == "killed"
    assert "dmesg" in cause


def test_warnings_of_a_healthy_server_explain_nothing() -> None:
    log = "[x TP0] Setup Custom allreduce failed with nvmlDeviceGetP2PStatus. To silence this, specify --disable-custom-all-reduce.\n"
    assert explain(log, 1) == ("unknown", "")


def test_source_that_a_traceback_quotes_explains_nothing() -> None:
    assert explain('    raise RuntimeError("Not enough memory. Please try to increase --mem-fraction-static.")\n', 1) == ("unknown", "")


def test_a_token_is_not_repeated() -> None:
    assert "hf_abcdefghijkl" not in explain("OSError: gated repo, token hf_abcdefghijkl\n", 1)[1]


def test_a_cause_is_never_longer_than_a_few_lines() -> None:
    assert len(explain("ValueError: Spec v2 " + "x" * 5000, 1)[1]) < 500


def test_every_class_that_has_a_kind_of_its_own_is_in_the_table() -> None:
    assert set(explaining._KINDS) <= {name for name, _ in explaining._TABLE}


@pytest.mark.parametrize(
    ("failure_class", "kind"),
    [
        ("hf_auth", ErrorKind.CONFIG),
        ("spec_draft_missing", ErrorKind.CONFIG),
        ("oom_kv_cache", ErrorKind.SERVER_OOM),
        ("port_in_use", ErrorKind.SERVER_LAUNCH),
        ("scheduler_crashed", ErrorKind.SERVER_EXITED),
        ("unknown", ErrorKind.SERVER_EXITED),
    ],
)
def test_what_fails_again_is_not_tried_again(failure_class: str, kind: ErrorKind) -> None:
    assert explaining.kind_of(failure_class) is kind
