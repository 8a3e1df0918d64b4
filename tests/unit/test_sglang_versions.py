"""Owns the promises of the reading of installed versions, on folders made for it and on this test's
own Python.
"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from fleet_agent.engines.sglang.proof import installed_versions


@pytest.fixture
def python(tmp_path: Path) -> Path:
    program = tmp_path / "env" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.touch()
    return program


def install(python: Path, *names: str, under: str = "lib/python3.12/site-packages") -> None:
    for name in names:
        (python.parent.parent / under / name).mkdir(parents=True)


def test_the_packages_that_can_change_a_number_are_named(python: Path) -> None:
    install(
        python,
        "sglang-0.5.23.dist-info",
        "torch-2.13.0+cu130.dist-info",
        "nvidia_nccl_cu13-2.28.3.dist-info",
        "rich-15.0.0.dist-info",
    )
    assert installed_versions.read_installed_versions(python) == {
        "sglang": "0.5.23",
        "torch": "2.13.0+cu130",
        "nvidia-nccl-cu13": "2.28.3",
    }


def test_a_virtual_environment_tells_its_python(python: Path) -> None:
    install(python, "torch-2.13.0.dist-info")
    (python.parent.parent / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.4\n")
    assert installed_versions.read_installed_versions(python) == {
        "torch": "2.13.0",
        "python": "3.12.4",
    }


@pytest.mark.parametrize(
    "under", ["lib/python3/dist-packages", "local/lib/python3.10/dist-packages"]
)
def test_the_folders_of_a_distribution_are_read_too(python: Path, under: str) -> None:
    install(python, "sgl_kernel-0.3.2.dist-info", under=under)
    assert installed_versions.read_installed_versions(python) == {"sgl-kernel": "0.3.2"}


def test_a_program_that_is_no_installed_python_tells_nothing(tmp_path: Path) -> None:
    assert installed_versions.read_installed_versions(tmp_path / "bin" / "python") == {}


def test_a_real_environment_is_read_without_starting_its_python() -> None:
    assert installed_versions.read_installed_versions(Path(sys.executable), names=("pytest",)) == {
        "pytest": version("pytest"),
        "python": platform.python_version(),
    }


@pytest.mark.parametrize(
    ("found", "cuda"),
    [
        ({"torch": "2.9.1+cu129"}, "12.9"), ({"torch": "2.13.0+cu130"}, "13.0"), ({"torch": "2.13.0+cpu"}, ""), ({}, ""),
        ({"torch": "2.9.1", "nvidia-cuda-runtime-cu12": "12.8.90"}, "12.8.90"),
    ],
)  # fmt: skip
def test_the_cuda_of_torch_is_told(found: dict[str, str], cuda: str) -> None:
    assert installed_versions.cuda_version(found) == cuda


def test_the_loaded_driver_is_read_from_the_kernel(tmp_path: Path) -> None:
    said = tmp_path / "version"
    said.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@x)\nGCC version: 12\n"
    )
    assert installed_versions.driver_version(said) == "580.65.06"
    said.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    )
    assert installed_versions.driver_version(said) == "550.54.15"
    assert installed_versions.driver_version(tmp_path / "absent") == ""
