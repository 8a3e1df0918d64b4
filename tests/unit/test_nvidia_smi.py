"""Owns the promises of reading nvidia-smi in each of its forms, well and ill."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_knowledge.failure_classes import FAILURES
from fleet_knowledge.host import nvidia_smi_errors, recognise_host_text
from fleet_knowledge.host.gpu import Gpu
from fleet_knowledge.host.gpu_processes import read_processes
from fleet_knowledge.host.nvidia_smi_gpus import (
    read_gpu_details,
    read_gpu_list,
    read_gpu_query,
    read_gpu_table,
)

LIST = """GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-11111111-2222-3333-4444-555555555555)
  MIG 3g.40gb     Device  0: (UUID: MIG-11111111-0000-3333-4444-555555555555)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-66666666-2222-3333-4444-555555555555)
"""
QUERY = """index, name, pcie.link.width.current, pcie.link.width.max, power.limit [W], memory.total [MiB], ecc.mode.current
0, NVIDIA H200, 16, 16, 700.00 W, 143771 MiB, Enabled
1, NVIDIA H200, 8, 16, 700.00 W, 143771 MiB, Enabled
2, NVIDIA H200, 16, 16, [N/A], 143771 MiB, [N/A]
"""
LOST_ROW = (
    "3, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]\n"
)
DETAILS = """==============NVSMI LOG==============

Timestamp                                 : Tue Mar  3 11:00:00 2026
Driver Version                            : 575.57.08
CUDA Version                              : 12.9

Attached GPUs                             : 1
GPU 00000000:9A:00.0
    Product Name                          : NVIDIA H200
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-77777777
    VBIOS Version                         : 96.00.BC.00.02
    PCI
        GPU Link Info
            PCIe Generation
                Max                       : 5
                Current                   : 1
                Device Current            : 1
            Link Width
                Max                       : 16x
                Current                   : 8x
    FB Memory Usage
        Total                             : 143771 MiB
        Reserved                          : 611 MiB
        Used                              : 4 MiB
    BAR1 Memory Usage
        Total                             : 262144 MiB
    ECC Mode
        Current                           : Enabled
    Temperature
        GPU Current Temp                  : 33 C
    GPU Power Readings
        Instantaneous Power Draw          : 77.01 W
        Current Power Limit               : 500.00 W
        Default Power Limit               : 700.00 W
    Clocks
        SM                                : 345 MHz
        Memory                            : 3201 MHz
    Max Clocks
        SM                                : 1980 MHz
        Memory                            : 3201 MHz
    Fabric
        State                             : Completed
        Status                            : Insufficient Resources
"""
TABLE = """+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   34C    P0             71W /  700W |   66120MiB /  81559MiB |      0%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:2B:00.0 Off |                    2 |
|ERR!   ERR! ERR!            ERR! / ERR! |       0MiB /  81559MiB |     ERR!     Default |
|                                         |                        |                 ERR! |
+-----------------------------------------+------------------------+----------------------+
+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|=========================================================================================|
|    0   N/A  N/A     71077      C   sglang::scheduler_TP0                       66110MiB |
+-----------------------------------------------------------------------------------------+
"""


def told(text: str) -> dict[str, Any]:
    found = recognise_host_text(text)
    assert found is not None and found["kind"] in ("nvidia_smi", "gpu_processes")
    return dict(found)


def test_a_list_names_each_gpu_and_which_is_sliced() -> None:
    first, second = read_gpu_list(LIST)
    assert (first.name, first.uuid, first.mig) == (
        "NVIDIA A100-SXM4-80GB",
        "GPU-11111111-2222-3333-4444-555555555555",
        True,
    )
    assert (second.index, second.mig) == (1, None)


def test_a_query_is_read_by_its_head_with_its_units_dropped() -> None:
    assert read_gpu_query(QUERY)[1] == Gpu(
        1,
        name="NVIDIA H200",
        pcie_width=8,
        pcie_width_max=16,
        power_limit_w=700,
        memory_mib=143771,
        ecc=True,
    )
    assert (read_gpu_query(QUERY)[2].power_limit_w, read_gpu_query(QUERY)[2].ecc) == (None, None)
    assert [warning["message"] for warning in told(QUERY)["warnings"]] == [
        "GPU1 runs at PCIe x8 (others x16)"
    ]
    assert told(QUERY)["slowest"]["pcie_width"] == 8


def test_a_gpu_that_is_lost_amid_a_query_is_told_with_the_others_read() -> None:
    found = told(QUERY + LOST_ROW)
    assert (found["failure_class"], found["host_state"], len(found["gpus"])) == (
        "gpu_lost",
        "degraded",
        4,
    )


def test_the_details_of_a_gpu_are_read_by_their_sections() -> None:
    assert read_gpu_details(DETAILS)[0] == Gpu(
        0, "GPU-77777777", "00000000:9A:00.0", "NVIDIA H200", 143771, 500, ecc=True, mig=False, persistence=True, sm_clock_max_mhz=1980,
        memory_clock_max_mhz=3201, driver="575.57.08", vbios="96.00.BC.00.02", pcie_width=8, pcie_width_max=16, pcie_generation_max=5,
        fabric="failed (Insufficient Resources)", memory_used_mib=4, pcie_generation=1, temperature_c=33, sm_clock_mhz=345,
        memory_clock_mhz=3201,
    )  # fmt: skip


def test_a_registration_that_ended_without_success_is_a_fabric_failure() -> None:
    found = told(DETAILS)
    assert (found["failure_class"], found["fabric"]) == ("fabric_manager_down", "down")
    assert told(DETAILS.replace("Insufficient Resources", "Success"))["failure_class"] is None


def test_the_plain_table_gives_memory_power_faults_and_processes() -> None:
    first, second = read_gpu_table(TABLE)
    assert (first.memory_used_mib, first.memory_mib, first.power_limit_w, first.bus_id, first.driver, first.fault) == (
        66120, 81559, 700, "00000000:1B:00.0", "550.90.07", None,
    )  # fmt: skip
    assert (second.fault, second.uncorrected_errors) == ("ERR!", 2)
    found = told(TABLE)
    assert (found["host_state"], [holder["pid"] for holder in found["processes"]]) == (
        "degraded",
        [71077],
    )
    assert {warning["code"] for warning in found["warnings"]} >= {"gpu_fault", "ecc_errors"}


@pytest.mark.parametrize(
    ("line", "failure_class"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144", "driver_mismatch"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is "
         "installed and running.", "no_gpu"),
        ("No devices were found", "no_gpu"),
        ("Failed to initialize NVML: Unknown Error", "no_gpu"),
        ("bash: nvidia-smi: command not found", "no_gpu"),
        ("Unable to determine the device handle for GPU0000:0B:00.0: GPU requires reset", "gpu_lost"),
        ("[  99.1] NVRM: Xid (PCI:0000:0b:00): 94, pid=1, Contained: SM (0x1). RST: No", "gpu_ecc_error"),
        ("[  99.1] NVRM: Xid (PCI:0000:0b:00): 119, pid=7, name=python3, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
         "gpu_fault"),
        ("[  99.1] NVRM: Xid (PCI:0000:0b:00): 31, pid=7, name=python3, MMU Fault: ENGINE GRAPHICS faulted", "gpu_fault"),
        ("NVRM: API mismatch: the client has the version 570.86.15, but", "driver_mismatch"),
        ('docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].', "no_gpu"),
        ("nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown.", "no_gpu"),
        ("[  99.1] NVRM: Xid (PCI:0000:0b:00): 74, pid='<unknown>', NVLink: fatal error detected on link 6", "nvlink_error"),
    ],
)  # fmt: skip
def test_each_state_of_a_host_has_a_class_that_is_known_and_a_hint(
    line: str, failure_class: str
) -> None:
    found = told(f"$ nvidia-smi\n{line}\n")
    assert (found["failure_class"], found["host_state"]) == (failure_class, "degraded")
    assert failure_class in FAILURES and found["hint"] and found["cause_line"] in line


LOST_TABLE = """|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
|ERR!   ERR! ERR!            ERR! / ERR!  |  GPU is lost           |     ERR!     Default |
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:2B:00.0 Off |                    0 |
| N/A   34C    P0             71W /  700W |   66120MiB /  81559MiB |      7%      Default |
"""


def test_a_gpu_that_is_lost_amid_the_table_takes_nothing_of_the_next_ones_line() -> None:
    first, second = read_gpu_table(LOST_TABLE)
    assert (first.fault, first.memory_mib, first.power_limit_w, second.memory_mib) == (
        "GPU is lost",
        None,
        None,
        81559,
    )
    found = told(LOST_TABLE)
    assert (
        found["failure_class"] == "gpu_lost"
        and found["cause_line"] in LOST_TABLE
        and "GPU is lost" in found["cause_line"]
    )


def test_a_table_without_memory_figures_still_gives_the_rest() -> None:
    head = LOST_TABLE.splitlines()[2].replace("H100 80GB HBM3", "GB10")
    body = "| N/A   41C    P8              4W /  N/A  | Not Supported          |      3%      Default |"
    (only,) = read_gpu_table(f"{head}\n{body}\n")
    assert (only.temperature_c, only.power_w, only.utilisation_percent, only.memory_mib) == (
        41,
        4,
        3,
        None,
    )


def test_one_gpu_in_two_spellings_of_its_address_is_one() -> None:
    off = "GPU has fallen off the bus."
    lines = (
        f"NVRM: Xid (PCI:0000:9d:00): 79, pid='<unknown>', {off}\nNVRM: GPU 0000:9d:00.0: {off}\n"
    )
    assert told(lines)["bus_ids"] == ["0000:9d:00"]


def test_a_gpu_without_power_is_not_told_to_be_rebooted() -> None:
    reason = "Unable to communicate with GPU because it is insufficiently powered."
    found = told(f"Unable to determine the device handle for gpu 0000:C1:00.0: {reason}\n")
    assert (
        found["failure_class"] == "gpu_lost"
        and "power cable" in found["hint"]
        and "Xid" not in found["hint"]
    )


def test_what_a_list_tells_of_the_others_is_kept_beside_a_lost_gpu() -> None:
    found = told(
        "GPU 0: NVIDIA L40S (UUID: GPU-1)\nUnable to determine the device handle for gpu 0000:43:00.0: Unknown Error\n"
    )
    assert [gpu["index"] for gpu in found["gpus"]] == [0]


def test_a_damaged_inforom_is_a_warning() -> None:
    found = told(
        TABLE.replace("ERR!", "N/A ") + "WARNING: infoROM is corrupted at gpu 0000:2B:00.0\n"
    )
    assert any(
        warning["code"] == "inforom" and "0000:2B:00.0" in warning["message"]
        for warning in found["warnings"]
    )


def test_a_reset_is_another_cure_than_a_reboot() -> None:
    reset = nvidia_smi_errors.read_driver_error(
        "Unable to determine the device handle for GPU0000:0B:00.0: GPU requires reset"
    )
    assert reset is not None and "must be reset" in reset["hint"]


def test_a_servers_log_that_quotes_such_a_line_is_no_text_of_nvidia_smi() -> None:
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1\nRuntimeError: No devices were found\n'
    assert recognise_host_text(trace) is None
    assert (
        recognise_host_text(
            "\n".join(["[2026-03-01 10:00:00] INFO: serving"] * 90 + ["No devices were found"])
        )
        is None
    )


@pytest.mark.parametrize(
    ("text", "pids", "seen"),
    [
        ("pid, process_name, used_gpu_memory [MiB]\n12, python3, 100 MiB\n", [12], [True]),
        ("gpu_uuid, pid, used_memory [MiB]\nGPU-1, 12, [N/A]\n", [12], [False]),
        (
            "pid, process_name, used_gpu_memory [MiB]\n12, [Insufficient Permissions], [N/A]\n13, -, 5 MiB\n",
            [12, 13],
            [False, False],
        ),
        ("pid, process_name, used_gpu_memory [MiB]\n", [], []),
        ("pid, process_name, used_gpu_memory [MiB]\nnonsense\n", [], []),
    ],
)
def test_processes_are_read_whatever_is_hidden_of_them(
    text: str, pids: list[int], seen: list[bool]
) -> None:
    found = read_processes(text)
    assert ([process.pid for process in found], [process.visible for process in found]) == (
        pids,
        seen,
    )
    assert told(text)["pids"] == pids
