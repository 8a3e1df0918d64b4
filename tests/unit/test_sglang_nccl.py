"""Owns the promises of the reading of what NCCL leaves on a host: its lines, its configuration
files, its library.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fleet_agent.engines.sglang.proof import nccl_files
from fleet_knowledge.nccl.nccl_conf import NcclConfFile
from fleet_knowledge.release import Release

SET = "gpu01:41:41 [0] NCCL INFO NCCL_PROTO set by environment to LL."


def test_nccls_own_files_and_the_servers_log_are_read_apart_from_the_witness(
    tmp_path: Path,
) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(
        b"[2026-01-02 03:04:05] Load weight begin.\nNCCL version 2.27.3+cuda12.9\n\xff\n"
    )
    (tmp_path / "nccl-gpu01-41.log").write_text(SET + "\n")
    (tmp_path / "nccl-witness-gpu01-33.log").write_text(
        "gpu01:33:33 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL\n"
    )
    assert list(nccl_files.read_nccl_lines(log)) == [SET, "NCCL version 2.27.3+cuda12.9"]
    assert [path.name for path in nccl_files.nccl_log_files(log)] == ["nccl-gpu01-41.log"]
    assert [path.name for path in nccl_files.nccl_log_files(log, witness=True)] == [
        "nccl-witness-gpu01-33.log"
    ]
    assert list(nccl_files.read_nccl_lines(tmp_path / "gone" / "server.log")) == []


def test_the_configuration_file_that_the_job_names_stands_for_the_one_at_home(
    tmp_path: Path,
) -> None:
    (tmp_path / ".nccl.conf").write_text("# fabric team\nNCCL_ALGO=Tree\n")
    named = tmp_path / "named.conf"
    named.write_text("NCCL_PROTO=Simple\n")
    home = str(tmp_path)
    newer, older = Release.parse("2.27.3"), Release.parse("2.22.3")
    by_name = {"NCCL_CONF_FILE": str(named)}
    assert nccl_files.read_nccl_configurations({}, newer, home)[0] == NcclConfFile(
        f"{home}/.nccl.conf", "# fabric team\nNCCL_ALGO=Tree\n"
    )
    assert nccl_files.read_nccl_configurations(by_name, newer, home)[0] == NcclConfFile(
        str(named), "NCCL_PROTO=Simple\n"
    )
    assert nccl_files.read_nccl_configurations(by_name, older, home)[0].name == f"{home}/.nccl.conf"
    absent = nccl_files.read_nccl_configurations(
        {"NCCL_CONF_FILE": str(tmp_path / "absent")}, newer, home
    )
    assert [source.name for source in absent if source.name != "/etc/nccl.conf"] == []


def test_the_mapped_library_is_told_by_its_path() -> None:
    maps = [
        "7f1 r-xp 00000000 08:01 5 /env/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "7f2 r--p 00000000 08:01 5 /env/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "7f3 r-xp 00000000 08:01 6 /opt/rocm/lib/librccl.so.1.0",
        "7f4 r-xp 00000000 08:01 7 /usr/lib/libc.so.6",
    ]
    assert nccl_files.find_mapped_libraries(maps) == {
        "/env/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
        "/opt/rocm/lib/librccl.so.1.0",
    }


def test_the_libraries_of_a_launch_are_found_by_its_token() -> None:
    token = f"test-{os.getpid()}/1"
    env = {**os.environ, "BENCHFLEET_LAUNCH": token}
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        assert nccl_files.find_loaded_libraries(token) == (), "Python alone loads no NCCL"
        assert nccl_files.find_loaded_libraries(f"{token}-of-nobody") == ()
    finally:
        process.communicate(b"\n", timeout=30)


def test_the_inspectors_files_are_read_only_where_the_job_enables_it(tmp_path: Path) -> None:
    (tmp_path / "named" / "rank0").mkdir(parents=True)
    (tmp_path / "named" / "rank0" / "dump.jsonl").write_text("{}\n")
    (tmp_path / "server" / "nccl-inspector-unknown-jobid").mkdir(parents=True)
    (tmp_path / "server" / "nccl-inspector-unknown-jobid" / "gpu0.prom").write_text("x 1\n")
    on, named = {"NCCL_INSPECTOR_ENABLE": "1"}, {"NCCL_INSPECTOR_DUMP_DIR": str(tmp_path / "named")}
    assert list(nccl_files.read_inspector_dumps({**on, **named}, tmp_path)) == ["{}\n"]
    assert list(nccl_files.read_inspector_dumps(on, tmp_path)) == ["x 1\n"]
    assert (
        list(nccl_files.read_inspector_dumps(named, tmp_path))
        == list(nccl_files.read_inspector_dumps({"NCCL_INSPECTOR_ENABLE": "0"}, tmp_path))
        == []
    )
