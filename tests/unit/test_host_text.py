"""Owns the promises of reading this host: NVML, the kernel's files, the fingerprint and its
identity.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from fleet_agent.host import sysfs
from fleet_agent.host.fingerprint import read_fingerprint
from fleet_agent.host.gpus import RecordedGpus
from fleet_agent.host.host_state import HostState
from fleet_agent.host.nvml import NvmlGpus
from fleet_knowledge.host.gpu import STABLE, VOLATILE, Gpu
from fleet_knowledge.host.gpu_comparison import find_differences, find_inequalities, least_values
from fleet_protos.errors import ConfigError
from tests.fakes.nvml_recording import RecordedNvml

DATA = Path(__file__).parent / "data" / "host"
BOX = DATA / "eight-gpus.json"


def recorded(folder: Path, **changes: object) -> RecordedGpus:
    """The box of eight GPUs with fields of its GPU 3 changed."""
    document = json.loads(BOX.read_text())
    document["gpus"][3] |= changes
    (folder / "gpus.json").write_text(json.dumps(document))
    return RecordedGpus(folder / "gpus.json")


def file(root: Path, name: str, content: str | bytes) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def test_without_a_driver_there_are_no_gpus_and_no_error() -> None:
    reading = NvmlGpus(RecordedNvml(DATA / "nvml-no-driver.json")).read()
    assert (reading.gpus, reading.fault) == ((), "")


def test_a_driver_that_does_not_fit_its_library_is_a_fault_with_a_class() -> None:
    reading = NvmlGpus(RecordedNvml(DATA / "nvml-mismatch.json")).read()
    assert (reading.gpus, reading.failure_class) == ((), "driver_mismatch")
    assert "mismatch" in reading.fault


def test_every_field_that_nvml_answers_is_read_and_its_library_is_closed_again(
    tmp_path: Path,
) -> None:
    file(tmp_path, "sys/bus/pci/devices/0000:18:00.0/numa_node", "1\n")
    nvml = RecordedNvml(DATA / "nvml-three-gpus.json")
    first = NvmlGpus(nvml, tmp_path).read().gpus[0]
    assert first == Gpu(
        0, "GPU-aaaa", "00000000:18:00.0", "NVIDIA H200", 143771, 700, ecc=True, mig=False, persistence=True, sm_clock_max_mhz=1980,
        memory_clock_max_mhz=3201, driver="570.124.06", vbios="96.00.BC.00.02", nvlinks=17, pcie_width=8, pcie_width_max=16,
        pcie_generation_max=5, numa=1, fabric="completed", memory_used_mib=640, pcie_generation=1, temperature_c=31, sm_clock_mhz=345,
        memory_clock_mhz=3201, power_w=76, utilisation_percent=0, slowed_by="hardware slowdown, heat (hardware)", uncorrected_errors=0,
    )  # fmt: skip
    assert nvml.open == 0


def test_what_a_gpu_does_not_have_is_absent_and_a_lost_one_is_a_fault() -> None:
    _, plain, lost = NvmlGpus(RecordedNvml(DATA / "nvml-three-gpus.json")).read().gpus
    assert set(plain.known_facts()) == {
        "index",
        "uuid",
        "name",
        "memory_mib",
        "memory_used_mib",
        "driver",
    }
    assert (lost.index, lost.fault) == (2, "GPU is lost")


def test_a_process_of_another_namespace_is_listed_without_a_name(tmp_path: Path) -> None:
    file(tmp_path, "proc/1/cmdline", b"sglang::scheduler_TP0\0")
    shown, unseen = NvmlGpus(RecordedNvml(DATA / "nvml-three-gpus.json"), tmp_path).read().processes
    assert (shown.pid, shown.name, shown.used_mib, shown.visible) == (
        1,
        "sglang::scheduler_TP0",
        65536,
        True,
    )
    assert (unseen.pid, unseen.name, unseen.used_mib, unseen.visible) == (4194000, "", None, False)


def test_two_readings_of_the_same_host_have_one_identity(tmp_path: Path) -> None:
    before = read_fingerprint(recorded(tmp_path))
    busy = {
        "memory_used_mib": 90000,
        "temperature_c": 74,
        "pcie_generation": 5,
        "sm_clock_mhz": 1980,
        "utilisation_percent": 99,
    }
    after = read_fingerprint(recorded(tmp_path, **busy))
    assert before.identity == after.identity
    assert before.volatile != after.volatile
    assert after.facts()["now.gpu_temperature_c"] == "31 32 33 74 35 36 37 38"


STABLE_CHANGES = {
    "name": "NVIDIA H100", "memory_mib": 81559, "power_limit_w": 500, "ecc": False, "mig": True, "persistence": False,
    "sm_clock_max_mhz": 1500, "memory_clock_max_mhz": 2619, "driver": "580.1", "vbios": "96.00.99.00.01", "nvlinks": 17, "pcie_width": 8,
    "pcie_width_max": 8, "pcie_generation_max": 4, "numa": 1, "fabric": "not started",
}  # fmt: skip


@pytest.mark.parametrize("name", STABLE)
def test_each_stable_fact_is_part_of_the_identity(tmp_path: Path, name: str) -> None:
    before = read_fingerprint(recorded(tmp_path))
    after = read_fingerprint(recorded(tmp_path, **{name: STABLE_CHANGES[name]}))
    assert before.identity != after.identity
    assert f"gpu_{name}" in {fact for fact, _, _ in find_differences(before.stable, after.stable)}


def test_no_field_is_both_stable_and_volatile() -> None:
    assert set(STABLE) & set(VOLATILE) == set()


def test_the_wires_are_part_of_the_identity(tmp_path: Path) -> None:
    gpus = recorded(tmp_path)
    text = gpus.topology_text()
    known = read_fingerprint(gpus, text)
    assert (known.stable["topology"], known.stable["topology_numa"]) == (
        "nvlink-NV18-8",
        "0 0 0 0 1 1 1 1",
    )
    assert read_fingerprint(gpus, text.replace("NV18", "NV12")).identity != known.identity


def test_the_least_of_each_value_stands_in_the_fingerprint(tmp_path: Path) -> None:
    facts = read_fingerprint(recorded(tmp_path, pcie_width=8, power_limit_w=450)).facts()
    assert (facts["least_pcie_width"], facts["least_power_limit_w"], facts["gpu_name"]) == (
        "8",
        "450",
        "NVIDIA H200",
    )


async def test_the_view_reads_a_fingerprint_of_this_very_host() -> None:
    facts = await HostState().fingerprint()
    assert {"identity", "kernel", "machine"} <= set(facts)
    assert all(isinstance(value, str) and value for value in facts.values())


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"gpus": [{"name": "no index"}]}', '{"gpus": [], "processes": [{"nothing": 1}]}'],
)
def test_a_broken_recording_is_the_users_to_mend(tmp_path: Path, content: str) -> None:
    (tmp_path / "gpus.json").write_text(content)
    with pytest.raises(ConfigError, match=r"gpus\.json"):
        RecordedGpus(tmp_path / "gpus.json").read()


def test_kernel_facts_come_from_its_files(tmp_path: Path) -> None:
    for cpu in (0, 1):
        file(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", "performance\n")
    file(tmp_path, "sys/devices/system/node/node0/cpulist", "0-71\n")
    file(tmp_path, "sys/devices/system/node/node1/cpulist", "\n")
    file(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    file(tmp_path, "proc/meminfo", "MemTotal:       1056 kB\nHugePages_Total:      12\n")
    facts = sysfs.kernel_facts(tmp_path)
    expected = {
        "cpu_governor": "performance",
        "numa_nodes": "1",
        "transparent_hugepages": "madvise",
        "hugepages": "12",
    }
    assert expected.items() <= facts.items()
    assert (facts["memory_total"], "iommu" in facts) == ("1056 kB", False)


IOMMU = [([], "", "off"), (["0"], "quiet", "on"), (["0"], "quiet iommu=pt", "passthrough")]


@pytest.mark.parametrize(("groups", "cmdline", "state"), IOMMU)
def test_the_iommu_is_off_on_or_passed_through(
    tmp_path: Path, groups: list[str], cmdline: str, state: str
) -> None:
    (tmp_path / "sys/kernel/iommu_groups").mkdir(parents=True)
    for group in groups:
        (tmp_path / "sys/kernel/iommu_groups" / group).mkdir()
    file(tmp_path, "proc/cmdline", cmdline)
    assert sysfs.iommu(tmp_path) == state


@pytest.mark.parametrize(("control", "state"), [(0x0001, "off"), (0x001D, "on"), (None, "")])
def test_acs_redirection_is_read_from_the_bridges_where_that_may_be(
    tmp_path: Path, control: int | None, state: str
) -> None:
    capability = struct.pack("<IHH", 0x000D | 1 << 16, 0x1F, control or 0)
    first = struct.pack("<I", 0x0001 | 0x140 << 20).ljust(0x40, b"\0")
    file(tmp_path, "sys/bus/pci/devices/0000:17:00.0/class", "0x060400\n")
    file(
        tmp_path,
        "sys/bus/pci/devices/0000:17:00.0/config",
        bytes(0x100) + first + capability if control is not None else bytes(64),
    )
    file(tmp_path, "sys/bus/pci/devices/0000:18:00.0/class", "0x030200\n")
    assert sysfs.acs(tmp_path) == state


def test_width_is_judged_always_and_generation_only_under_load() -> None:
    gpus = [
        Gpu(index, pcie_width=16, pcie_width_max=16, pcie_generation=1 if index == 2 else 5)
        for index in range(4)
    ]
    assert find_inequalities(gpus) == ()
    assert [warn.message for warn in find_inequalities(gpus, under_load=True)] == [
        "GPU2 runs at PCIe generation 1 under load (others 5)"
    ]


def test_gpus_that_are_all_alike_and_all_too_narrow_are_told_once() -> None:
    gpus = [Gpu(index, pcie_width=8, pcie_width_max=16) for index in range(4)]
    assert [warn.message for warn in find_inequalities(gpus)] == ["all GPUs run at PCIe x8 of x16"]
    assert least_values(gpus) == {"pcie_width": 8}


def test_an_unknown_value_is_no_difference() -> None:
    assert find_inequalities([Gpu(0, power_limit_w=700), Gpu(1), Gpu(2, power_limit_w=700)]) == ()
