"""Owns the promises of the reading of what NCCL leaves on a host: its lines, its configuration files, its library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fleet_agent.engines.sglang import nccl

SET = "gpu01:41:41 [0] NCCL INFO NCCL_PROTO set by environment to LL."


def test_nccls_own_files_and_the_servers_log_are_read_apart_from_the_witness(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(b"[2026-01-02 03:04:05] Load weight begin.\nNCCL version 2.27.3+cuda12.9\n\xff\n")
    (tmp_path / "nccl-gpu01-41.log").write_text(SET + "\n")
    (tmp_path / "nccl-witness-gpu01-33.log").write_text("gpu01:33:33 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL\n")
    assert list(nccl.lines(log)) == [SET, "NCCL version 2.27.3+cuda12.9"]
    assert [path.name for path in nccl.logs(log)] == ["nccl-gpu01-41.log"]
    assert [path.name for path in nccl.logs(log, witness=True)] == ["nccl-witness-gpu01-33.log"]
    assert list(nccl.lines(tmp_path / "gone" / "server.log")) == []


def test_the_configuration_file_that_the_job_names_stands_for_the_one_at_home(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("# fabric team\nNCCL_ALGO=Tree\n NCCL_IB_HCA = mlx5_0 \nnonsense\n")
    named = tmp_path / "named.conf"
    named.write_text("NCCL_PROTO=Simple\n")
    home = str(tmp_path)
    at_home = nccl.configurations({}, home)
    assert at_home[f"{home}/.nccl.conf"] == {"NCCL_ALGO": "Tree", "NCCL_IB_HCA": "mlx5_0"}
    by_name = nccl.configurations({"NCCL_CONF_FILE": str(named)}, home)
    assert by_name[str(named)] == {"NCCL_PROTO": "Simple"}
    assert f"{home}/.nccl.conf" not in by_name
    assert str(named) not in nccl.configurations({"NCCL_CONF_FILE": str(tmp_path / "absent")}, home)


def test_the_mapped_library_is_told_by_its_path() -> None:
    maps = [
        "7f1 r-xp 00000000 08:01 5 /env/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "7f2 r--p 00000000 08:01 5 /env/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "7f3 r-xp 00000000 08:01 6 /opt/rocm/lib/librccl.so.1.0",
        "7f4 r-xp 00000000 08:01 7 /usr/lib/libc.so.6",
    ]
    assert nccl.mapped(maps) == {"/env/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2", "/opt/rocm/lib/librccl.so.1.0"}


def test_the_libraries_of_a_launch_are_found_by_its_token() -> None:
    token = f"test-{os.getpid()}/1"
    env = {**os.environ, "BENCHFLEET_LAUNCH": token}
    process = subprocess.Popen([sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE, start_new_session=True)
    try:
        assert nccl.loaded_libraries(token) == (), "Python alone loads no NCCL"
        assert nccl.loaded_libraries(f"{token}-of-nobody") == ()
    finally:
        process.communicate(b"\n", timeout=30)


def test_the_inspectors_files_are_read_only_where_the_job_enables_it(tmp_path: Path) -> None:
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "dump.jsonl").write_text("{}\n")
    folder = {"NCCL_INSPECTOR_DUMP_DIR": str(tmp_path)}
    assert list(nccl.inspector_dumps({**folder, "NCCL_INSPECTOR_ENABLE": "1"})) == ["{}\n"]
    assert list(nccl.inspector_dumps(folder)) == list(nccl.inspector_dumps({"NCCL_INSPECTOR_ENABLE": "1"})) == []
