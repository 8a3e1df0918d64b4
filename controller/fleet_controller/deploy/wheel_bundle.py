"""Builds the set of wheels that is sent to hosts, and caches it per target. It holds our own wheels
and the pinned wheels that they need.

`agent-requirements.txt` pins the wheels with their digests, so every host runs the agent that was
tested.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path

from fleet_controller.deploy.own_wheels import AGENT_WHEEL, SIMULATOR_WHEEL, OwnWheel
from fleet_protos import __version__
from fleet_protos.errors import ConfigError

DOWNLOAD_TIMEOUT_S = 900.0
_ARCHITECTURES = ("x86_64", "aarch64")
_OLDEST_GLIBC = 17  # the minor version of manylinux2014, which wheels are built for


@dataclass(frozen=True, slots=True, order=True)
class WheelTarget:
    """Says what a wheel must run on.

    `python` is (major, minor). `machine` is the architecture as the kernel names it. `glibc` is the
    minor version of glibc 2.
    """

    python: tuple[int, int]
    machine: str
    glibc: int

    @property
    def tag(self) -> str:
        """The name of the target in folders and messages."""
        return f"cp{self.python[0]}{self.python[1]}-{self.machine}-glibc2.{self.glibc}"

    def platforms(self) -> list[str]:
        """Return the platform tags of wheels that run on this target, newest glibc first."""
        newer = [
            f"manylinux_2_{minor}_{self.machine}"
            for minor in range(self.glibc, _OLDEST_GLIBC - 1, -1)
        ]
        return [*newer, f"manylinux2014_{self.machine}", f"linux_{self.machine}"]


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A wheel or Python to send.

    `name` is the folder that it is unpacked to, unique by its digest. `unpacked_bytes` is the space
    that it needs in that folder.
    """

    name: str
    source: Path
    size: int
    sha256: str
    unpacked_bytes: int


@dataclass(frozen=True, slots=True)
class Bundle:
    """All wheels of one target."""

    version: str
    wheels: tuple[BundleFile, ...]

    @property
    def size(self) -> int:
        """The number of bytes that are copied to a new host."""
        return sum(item.size for item in self.wheels)


def wheel_target(python: tuple[int, int, int], machine: str, libc: str) -> WheelTarget:
    """Return the wheel target that fits a host's Python, processor and C library.

    Raises ConfigError for a C library or processor that there are no wheels for.
    """
    match = re.fullmatch(r"glibc 2\.(\d+)", libc)
    if not match or int(match[1]) < _OLDEST_GLIBC:
        library = libc or "not glibc"
        raise ConfigError(
            f"its C library ({library}) is not supported",
            f"benchfleet needs glibc 2.{_OLDEST_GLIBC} or newer",
        )
    if machine not in _ARCHITECTURES:
        supported = " and ".join(_ARCHITECTURES)
        raise ConfigError(
            f"its processor is {machine}, which is not supported",
            f"benchfleet runs on {supported}",
        )
    return WheelTarget(python[:2], machine, int(match[1]))


class Bundler:
    """Builds bundles in the user's cache.

    `wheels` is a folder to take wheels from. None means that pip's package index is used.
    """

    def __init__(self, cache: Path, wheels: Path | None = None) -> None:
        self.cache = cache
        self._wheels = wheels

    def build(self, target: WheelTarget, *, simulated: bool = False) -> Bundle:
        """Build the bundle of a target, with the simulator if `simulated`.

        Only wheels that are not in the cache are fetched. Raises ConfigError with pip's error, or
        if the simulator is not installed here.
        """
        pins = files("fleet_controller.deploy") / "agent-requirements.txt"
        folder = (
            self.cache / "wheels" / target.tag / hashlib.sha256(pins.read_bytes()).hexdigest()[:16]
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(".lock")):
            if not folder.is_dir():
                with (
                    as_file(pins) as requirements,
                    tempfile.TemporaryDirectory(dir=folder.parent) as fresh,
                ):
                    wheels = Path(fresh) / "wheels"
                    self._download(requirements, target, wheels)
                    wheels.rename(folder)  # complete, and never changed: others may be reading it
            pinned = [read_bundle_file(path) for path in sorted(folder.glob("*.whl"))]
        ours = (AGENT_WHEEL, SIMULATOR_WHEEL) if simulated else (AGENT_WHEEL,)
        return Bundle(__version__, (*map(self._own_wheel, ours), *pinned))

    def _own_wheel(self, wheel: OwnWheel) -> BundleFile:
        if not wheel.is_available:
            raise ConfigError(
                "simulated_gpus is set, but the simulator is not installed here, so deploy cannot"
                " send it",
                "install benchfleet[simulator] here, or set simulated_gpus: 0",
            )
        content = wheel.build()
        folder = self.cache / "own" / hashlib.sha256(content).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / ".lock"):
            _write_if_changed(folder / wheel.file_name, content)
            return read_bundle_file(folder / wheel.file_name)

    def _download(self, requirements: Path, target: WheelTarget, folder: Path) -> None:
        python = f"{target.python[0]}.{target.python[1]}"
        argv = [*_pip_argv(), "download", "--quiet", "--disable-pip-version-check", "--no-input"]
        argv += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation", "cp"]
        argv += ["--python-version", python, "--dest", str(folder)]
        argv += ["--requirement", str(requirements)]
        for platform in target.platforms():
            argv += ["--platform", platform]
        if self._wheels is not None:
            argv += ["--no-index", "--find-links", str(self._wheels.absolute())]
        try:
            done = subprocess.run(
                argv,
                capture_output=True,
                text=True,
                timeout=DOWNLOAD_TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"fetching the agent's wheels took longer than {DOWNLOAD_TIMEOUT_S:.0f} s",
                "check that pip's package index is reachable, or use --wheels DIR",
            ) from None
        except OSError as error:
            raise ConfigError(f"cannot start pip: {error}", _NO_PIP) from error
        if done.returncode != 0:
            lines = done.stderr.splitlines()
            errors = [line for line in lines if line.startswith("ERROR")] or lines[-3:]
            raise ConfigError(
                f"cannot fetch the agent's wheels for {target.tag}: {' / '.join(errors)}",
                "check that pip's package index is reachable and has these wheels;"
                " --wheels DIR takes them from a folder",
            )


_NO_PIP = "install pip for the Python that runs fleetctl (python -m ensurepip), or uv"


def _pip_argv() -> list[str]:
    """Return the arguments that start pip: this interpreter's pip, else uv's, else the pip in
    PATH.
    """
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if shutil.which("uv"):
        return ["uv", "tool", "run", "pip"]
    if shutil.which("pip"):
        return ["pip"]
    raise ConfigError("cannot fetch the agent's wheels: pip is not installed", _NO_PIP)


def read_bundle_file(path: Path) -> BundleFile:
    """Describe a wheel. Its digest and unpacked size are cached in a hidden file next to it."""
    status = path.stat()
    note, stamp = path.with_name(f".{path.name}.json"), [status.st_size, status.st_mtime_ns]
    cached = json.loads(_read_or_empty(note) or "{}")
    if cached.get("stamp") != stamp:
        digest = file_sha256(path)
        with zipfile.ZipFile(path) as wheel:
            unpacked = sum(entry.file_size for entry in wheel.infolist())
        cached = {"stamp": stamp, "sha256": digest, "unpacked": unpacked}
        _write_if_changed(note, json.dumps(cached).encode())
    name, version = path.name.split("-")[:2]
    return BundleFile(
        f"{name}-{version}-{cached['sha256'][:16]}",
        path,
        status.st_size,
        cached["sha256"],
        cached["unpacked"],
    )


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def user_cache(environment: Mapping[str, str]) -> Path:
    """Return the folder for bundles in $XDG_CACHE_HOME or ~/.cache."""
    return (
        Path(environment.get("XDG_CACHE_HOME", "") or "~/.cache").expanduser()
        / "benchfleet"
        / "bundles"
    )


def _read_or_empty(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _write_if_changed(path: Path, content: bytes) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    new.replace(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file while inside, so that one process builds at a time."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
