"""Owns the environment in which SGLang 0.5.23 serves on a CPU: made once in the user's cache, never
inside the repository.

    python tests/real_sglang/environment.py     prints the folder; the first time it installs about
    1.2 GB, later it returns at once

`<cache>/benchfleet/sglang-cpu` is a link to the current one and holds `bin/python` and
`tiny-model`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
STANDINS = HERE / "standins"
TINY_MODEL = HERE / "tiny_model.py"
SGLANG = "0.5.23"
SERVER_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
STAMP = "complete"  # written last: a folder without it is what an interrupted installation left


class InstallFailed(Exception):
    """A step of the installation failed; the message says which, and shows the end of what it
    printed.
    """


def cache() -> Path:
    """Where environments are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "benchfleet"


def link() -> Path:
    """The fixed name of the current environment."""
    return cache() / "sglang-cpu"


def recipe_digest() -> str:
    """Changes with anything that goes into the environment: pins, stand-ins, model and the Python
    that runs it.
    """
    digest = hashlib.sha256(platform.python_version().encode())
    standins = sorted(
        path for path in STANDINS.rglob("*") if path.is_file() and path.suffix != ".pyc"
    )
    for path in (REQUIREMENTS, TINY_MODEL, *standins):
        digest.update(f"\0{path.relative_to(HERE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def ensure() -> Path:
    """The environment's folder, made if need be. Raises InstallFailed."""
    folder = cache() / f"sglang-cpu-{SGLANG}-{recipe_digest()}"
    with _alone(folder.with_suffix(folder.suffix + ".lock")):
        if not (folder / STAMP).exists():
            _build(folder)
        _point_link_at(folder)
    return folder


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # a second builder waits, then finds the stamp
        yield


def _build(folder: Path) -> None:
    started_s = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    print(
        f"SGLang {SGLANG} for the CPU is being installed in {folder}: about 1.2 GB, two to six minutes",
        flush=True,
    )
    _do("virtual environment", sys.executable, "-m", "venv", str(folder))
    python = str(folder / "bin" / "python")
    _do(
        "packages",
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "-r",
        str(REQUIREMENTS),
    )
    _do(
        "torch, of which pip must find a build for the CPU (PIP_FIND_LINKS=FOLDER names one)",
        python,
        "-c",
        "import torch",
    )
    where = _do(
        "site-packages", python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
    ).strip()
    shutil.copytree(
        STANDINS, where, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    _do("model", python, str(TINY_MODEL), str(folder / "tiny-model"))
    _do(
        "first import",
        python,
        "-c",
        "import sglang.srt.entrypoints.http_server",
        env={**os.environ, **SERVER_ENVIRONMENT},
    )
    (folder / STAMP).write_text(f"{recipe_digest()}\n")
    print(f"installed in {time.monotonic() - started_s:.0f} s", flush=True)


def _do(step: str, *argv: str, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        raise InstallFailed(
            f"{step}: {' '.join(argv)} ended with {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}"
        )
    return done.stdout


def _point_link_at(folder: Path) -> None:
    name = link()
    if name.is_symlink() and os.readlink(name) == folder.name:
        return
    fresh = name.with_name(f"{name.name}.{os.getpid()}")
    fresh.symlink_to(folder.name)
    fresh.replace(name)


if __name__ == "__main__":
    try:
        print(ensure())
    except InstallFailed as error:
        sys.exit(f"the SGLang environment could not be made. {error}")
