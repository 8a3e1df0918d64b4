"""Fetches relocatable Pythons with uv into the user's cache, for hosts without a usable Python."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from fleet_controller.deploy.wheel_bundle import BundleFile, file_sha256
from fleet_protos.errors import ConfigError

PYTHON_VERSION = "3.12"
_FETCH_TIMEOUT_S = 600.0
_FOLDER = re.compile(r"cpython-(\d+)\.(\d+)\.(\d+)-linux-(\w+)-gnu")
_EXCLUDED_NAMES = {
    "__pycache__",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "include",
    "share",
}


def fetch_python(cache: Path, machine: str) -> tuple[tuple[int, int, int], BundleFile]:
    """Return the version and the file of a Python for `machine`. Raises ConfigError with uv's
    error.
    """
    folder = cache / "pythons"
    folder.mkdir(parents=True, exist_ok=True)
    tree = _find_tree(folder, machine) or _fetch_tree(folder, machine)
    match = _FOLDER.fullmatch(tree.name)
    assert match is not None
    archive = folder / f"{tree.name}.tar.gz"
    if not archive.exists():
        pack_tree(tree, archive)
    with tarfile.open(archive) as tar:
        unpacked = sum(member.size for member in tar)
    digest = file_sha256(archive)
    name = f"{tree.name}-{digest[:16]}"
    return (int(match[1]), int(match[2]), int(match[3])), BundleFile(
        name, archive, archive.stat().st_size, digest, unpacked
    )


def _find_tree(folder: Path, machine: str) -> Path | None:
    found = (
        ([int(part) for part in match.groups()[:3]], path)
        for path in folder.iterdir()
        if path.is_dir() and (match := _FOLDER.fullmatch(path.name)) and match[4] == machine
    )
    return max(found, default=(None, None))[1]


def _fetch_tree(folder: Path, machine: str) -> Path:
    argv = [
        _uv_path(),
        "python",
        "install",
        "--quiet",
        "--no-bin",
        "--install-dir",
        str(folder),
        f"cpython-{PYTHON_VERSION}-linux-{machine}-gnu",
    ]
    hint = (
        "set UV_PYTHON_INSTALL_MIRROR to a mirror of python-build-standalone (file:// works too), "
        "or install Python 3.11 or newer on the host and set install.python: auto"
    )
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=_FETCH_TIMEOUT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"fetching a Python took longer than {_FETCH_TIMEOUT_S:.0f} s", hint
        ) from None
    tree = _find_tree(folder, machine)
    if done.returncode != 0 or tree is None:
        last_lines = " / ".join(done.stderr.strip().splitlines()[-2:])
        raise ConfigError(f"uv could not fetch a Python: {last_lines}", hint)
    return tree


def _uv_path() -> str:
    neighbour = Path(sys.executable).with_name("uv")
    found = str(neighbour) if os.access(neighbour, os.X_OK) else shutil.which("uv")
    if not found:
        raise ConfigError(
            "install.python: bundled needs uv on this machine to fetch a Python",
            "install uv (pip install uv), or set install.python to an interpreter of the host",
        )
    return found


def pack_tree(tree: Path, archive: Path) -> None:
    """Pack a Python into one file without the parts that an agent never imports.

    The same tree gives the same bytes.
    """
    new = archive.with_name(f"{archive.name}.new")
    with (
        new.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path in sorted(tree.rglob("*")):
            inside = path.relative_to(tree)
            if _EXCLUDED_NAMES.isdisjoint(inside.parts) and not path.name.endswith((".a", ".pyc")):
                tar.add(path, str(inside), recursive=False, filter=_normalise_member)
    new.replace(archive)


def _normalise_member(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    member.mode = 0o755 if member.isdir() or member.mode & 0o111 else 0o644
    return member
