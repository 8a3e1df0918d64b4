"""NCCL's configuration files and the inspector's dumps: text in, values out."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from fleet_knowledge.nccl.inspector_output import (
    algo_proto_by_collective,
    is_inspector_dump,
    read_inspector,
)
from fleet_knowledge.nccl.nccl_conf import (
    NcclConfFile,
    find_misleading_lines,
    parse_nccl_conf,
    resolve_settings,
    user_file,
)
from fleet_knowledge.release import Release

LABELS = 'version="v5.1",slurm_job_id="unknown",node="n1",gpu="GPU0",comm_name="tp, \\"0\\"",n_nodes="1",nranks="8",collective="AllReduce"'
PROMETHEUS = (
    f'nccl_bus_bandwidth_gbs{{{LABELS},message_size="64-65KB",algo_proto="Ring_ll"}} 41.5\n'
    f'nccl_collective_exec_time_microseconds{{{LABELS},message_size="64-65KB",algo_proto="Ring_ll"}} 12.25\n'
    f'nccl_bus_bandwidth_gbs{{{LABELS},message_size="4-5GB",algo_proto="Nvls_tree_simple"}} 400\n'
    'nccl_p2p_bus_bandwidth_gbs{gpu="GPU0",nranks="8",p2p_operation="Send",message_size="1-2MB"} 4\n'
    "node_load1 0.5\n"
)


def test_a_file_is_read_as_nccl_reads_it() -> None:
    text = "NCCL_PROTO=LL\n# NCCL_ALGO=Tree\nNCCL_PROTO=Simple\nno equals\nNCCL_IB_HCA==mlx5_0\n NCCL_X=1\r\n"
    assert parse_nccl_conf(text) == {"NCCL_PROTO": "LL", "NCCL_IB_HCA": "=mlx5_0", " NCCL_X": "1"}


def test_the_process_wins_over_the_user_and_the_user_over_the_system() -> None:
    user = NcclConfFile("~/.nccl.conf", "NCCL_PROTO=LL128\nNCCL_ALGO=Tree\n")
    system = NcclConfFile("/etc/nccl.conf", "NCCL_ALGO=Ring\nNCCL_IB_DISABLE=1\n")
    found = resolve_settings({"NCCL_PROTO": "LL", "PATH": "/bin"}, user, system)
    assert {name: (setting.value, setting.source) for name, setting in found.items()} == {
        "NCCL_PROTO": ("LL", "environment"),
        "NCCL_ALGO": ("Tree", "~/.nccl.conf"),
        "NCCL_IB_DISABLE": ("1", "/etc/nccl.conf"),
    }
    assert found["NCCL_PROTO"].hidden == (("~/.nccl.conf", "LL128"),)


def test_the_users_file_is_named_by_a_variable_from_2_23() -> None:
    env = {"NCCL_CONF_FILE": "/opt/nccl.conf"}
    assert user_file(env, Release.parse("2.23.4"), "/home/USER") == "/opt/nccl.conf"
    assert user_file(env, Release.parse("2.22.3"), "/home/USER/") == "/home/USER/.nccl.conf"
    assert user_file({}, None, "/home/USER") == "/home/USER/.nccl.conf"


def test_lines_that_nccl_does_not_read_as_they_look_are_told() -> None:
    text = "NCCL_PROTO = LL\nexport NCCL_ALGO=Ring\nNCCL_IB_HCA=mlx5_0 # rail\nNCCL_OK=1\n# fine\n\nNCCL_DOS=1\r"
    assert [number for number, _ in find_misleading_lines(text)] == [1, 2, 3, 7]


def test_both_figures_of_a_sample_come_together() -> None:
    rows = read_inspector(PROMETHEUS)
    first = rows[0]
    assert (first.collective, first.message_size, first.algo, first.proto, first.nranks) == (
        "AllReduce",
        "64-65KB",
        "RING",
        "LL",
        8,
    )
    assert (first.busbw_gb_s, first.exec_time_us, first.count) == (41.5, 12.25, 1)
    assert (rows[1].algo, rows[1].proto) == ("NVLS_TREE", "SIMPLE")
    assert algo_proto_by_collective(rows) == {"AllReduce": ("Ring_ll", "Nvls_tree_simple")}


def test_a_dump_of_json_lines_tells_sizes_and_no_choice() -> None:
    line = {
        "header": {"id": "0x7f", "rank": 2, "n_ranks": 8, "nnodes": 1},
        "coll_perf": {
            "coll": "AllReduce",
            "coll_msg_size_bytes": 57344,
            "coll_exec_time_us": 20,
            "coll_busbw_gbs": 3.5,
        },
    }
    sent = {"header": {"rank": 1}, "p2p_perf": {"p2p": "Send"}}
    text = "\n".join((json.dumps(line), json.dumps(line), json.dumps(sent), '{"cut'))
    [row] = read_inspector(text)
    assert (row.collective, row.message_size, row.gpu, row.nranks, row.count) == (
        "AllReduce",
        "57344",
        "rank 2",
        8,
        2,
    )
    assert algo_proto_by_collective((row,)) == {}


def test_only_dumps_are_taken_for_dumps() -> None:
    assert is_inspector_dump(PROMETHEUS)
    assert not is_inspector_dump("sglang:gen_throughput 1\n[2026-01-01 00:00:00] ready\n{}")


@given(st.text())
def test_no_text_makes_a_reader_raise(text: str) -> None:
    parse_nccl_conf(text)
    find_misleading_lines(text)
    read_inspector(text + '\n{"coll_perf": 3}\nnccl_bus_bandwidth_gbs{collective="a"} x')
