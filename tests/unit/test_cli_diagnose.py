"""Owns the promises of `fleetctl diagnose`: files in, exit code, JSON and short text out."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fleet_controller.cli.main import main
from fleet_knowledge.failure_classes import FAILURES
from fleet_protos.errors import ExitCode

STAMP = "[2026-03-05 14:00:00"
OOM = (
    f"{STAMP} TP1] Capture cuda graph begin. This can take up to several minutes. avail mem=2.90 GB\n"
    f"{STAMP} TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
)
WORK = f"{STAMP} TP0] Decode batch, #running-req: 4, #token: 9, token usage: 0.10, gen throughput (token/s): 200.00, #queue-req: 0\n"
WAITING = f"{STAMP} TP1] Scheduler hit an exception: Traceback (most recent call last):\nValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading.\n"


def written(folder: Path, **texts: str) -> list[str]:
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [str(folder / name) for name in texts]


def diagnosed(
    files: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[str, Any]]:
    exit_code = main(["diagnose", *files, "--json"])
    return exit_code, json.loads(capsys.readouterr().out)


def test_a_healthy_log_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, document = diagnosed(written(tmp_path, log=WORK), capsys)
    assert (exit_code, document["state"], document["decode"]["total_gen_throughput"]) == (
        ExitCode.DONE,
        "serving",
        200,
    )


def test_a_failure_ends_with_1_and_says_what_to_do_and_what_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", *written(tmp_path, log=OOM)]) == ExitCode.FAILED
    shown = capsys.readouterr().out
    assert "failed: oom_cuda_graph (TP1, capture_graph), a retry does not help" in shown
    assert "  torch.OutOfMemoryError: CUDA out of memory" in shown
    assert "what to do: " in shown and "what not to do: --disable-cuda-graph" in shown
    assert len(shown.splitlines()) < 10


def test_a_file_that_is_not_there_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(tmp_path / "none.log")]) == ExitCode.USAGE_ERROR
    told = capsys.readouterr()
    assert told.out == ""
    assert "none.log: No such file" in told.err


def test_a_folder_is_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(tmp_path)]) == ExitCode.USAGE_ERROR
    assert "Is a directory" in capsys.readouterr().err


def test_standard_input_is_read_for_a_dash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(OOM.encode())))
    exit_code, document = diagnosed(["-"], capsys)
    assert (exit_code, document["file"], document["failure_class"]) == (
        ExitCode.FAILED,
        "-",
        "oom_cuda_graph",
    )


def test_of_several_hosts_the_root_is_in_front_and_not_the_one_that_waited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = f"{STAMP} TP8] Load weight begin. avail mem=90.00 GB\n"
    files = written(
        tmp_path,
        waited=WAITING,
        slow=slow,
        dead=slow + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n",
    )
    _, document = diagnosed(files, capsys)
    assert (Path(document["file"]).name, document["failure_class"]) == ("dead", "oom_weights")
    assert [Path(told["file"]).name for told in document["files"]] == ["waited", "slow", "dead"]
    assert [Path(name).name for name in document["details"]["unfinished_files"]] == ["slow"]


def test_a_list_of_processes_beside_the_log_names_who_holds_the_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = f"{STAMP} TP0] The memory capacity is unbalanced. Some GPUs may be occupied by other processes.\n"
    processes = (
        "pid, process_name, used_gpu_memory [MiB]\n71077, sglang::scheduler_TP1, 70210 MiB\n"
    )
    exit_code, document = diagnosed(written(tmp_path, log=log, smi=processes), capsys)
    assert (exit_code, document["failure_class"], document["pids"]) == (
        ExitCode.FAILED,
        "gpu_busy_leftover",
        [71077],
    )
    assert "71077" in document["hint"]


@pytest.mark.parametrize(
    ("text", "kind", "exit_code"),
    [
        ("acc_length=2.42\nspeed=100.43 token/s\n", "send_one", ExitCode.DONE),
        (
            "Unable to determine the device handle for GPU0000:62:00.0: Unknown Error\n",
            "nvidia_smi",
            ExitCode.FAILED,
        ),
        (
            "h1:1:1 [0] NCCL INFO AllReduce: 32768 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..7}\n",
            "nccl_log",
            ExitCode.DONE,
        ),
        ("nothing that anybody knows\n", "text", ExitCode.DONE),
        ("", "text", ExitCode.DONE),
    ],
)
def test_other_files_are_told_by_their_kind(
    text: str, kind: str, exit_code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended, document = diagnosed(written(tmp_path, file=text), capsys)
    assert (document["kind"], ended) == (kind, exit_code)
    assert {
        "state",
        "failure_class",
        "cause_line",
        "rank",
        "hint",
        "phases_s",
        "warnings",
        "decode",
        "nccl",
        "versions",
    } <= set(document)


def test_a_document_that_gathers_texts_is_read_text_by_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, document = diagnosed(written(tmp_path, gathered=json.dumps([WORK, OOM])), capsys)
    assert [(told["file"].rpartition("/")[2], told["state"]) for told in document["files"]] == [
        ("gathered[0]", "serving"),
        ("gathered[1]", "failed"),
    ]


def test_equal_lines_of_nccl_are_counted_though_read_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = (
        "h1:1:1 [0] NCCL INFO AllReduce: 32768 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..7}\n"
    )
    _, document = diagnosed(written(tmp_path, log=line * 500), capsys)
    assert document["nccl"]["tuning"]["rows"] == [["AllReduce", 32768, "RING", "LL", 8, 500]]


def test_invalid_bytes_do_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"\xff\xfe\x00" + OOM.encode() + b"\xc3")
    assert diagnosed([str(file)], capsys)[1]["failure_class"] == "oom_cuda_graph"


@pytest.mark.parametrize("first", ["Xid (PCI:0000:41:00): 150, MSE Fatal\n[ 8.1] NVRM: ", ""])
def test_advice_and_what_not_to_do_are_of_one_class(
    first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"[ 8.0] NVRM: {first}Xid (PCI:0000:41:00): 45, pid=9, name=python3, Ch 0000000a (caused by previous Xid 150)\n"
    exit_code, document = diagnosed(written(tmp_path, dmesg=text), capsys)
    failure = FAILURES["nvlink_error"]
    assert (exit_code, document["failure_class"], document["avoid"]) == (
        ExitCode.FAILED,
        "nvlink_error",
        failure.avoid,
    )


@pytest.mark.parametrize(
    ("content", "program"),
    [(gzip.compress(OOM.encode()), "gunzip -c"), (OOM.encode("utf-16"), "iconv")],
)
def test_a_log_that_must_be_unpacked_is_refused_and_not_called_good(
    content: bytes, program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_bytes(content)
    assert main(["diagnose", str(tmp_path / "log")]) == ExitCode.USAGE_ERROR
    assert program in capsys.readouterr().err


def test_what_is_no_log_is_told_as_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["diagnose", *written(tmp_path, empty="", poem="the sea is blue\n")]) == ExitCode.DONE
    )
    assert capsys.readouterr().err.count("not recognised as a server log") == 2
