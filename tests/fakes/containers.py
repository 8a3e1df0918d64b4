"""Owns a container runtime for tests: podman with storage of its own and an empty image. Touches no
container or image of the user's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

IMAGE = "localhost/benchfleet-test:empty"
_STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
# The second is for a machine whose control groups crun does not take, and that has no systemd.
_SETTINGS = (
    "",
    '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n',
)


@dataclass(frozen=True, slots=True)
class Podman:
    """A podman that was shown to run a container; `variables` lead any podman to it."""

    program: str
    variables: dict[str, str]

    def say(self, *words: str) -> str:
        """What podman prints. Raises CalledProcessError."""
        env = {**os.environ, **self.variables}
        done = subprocess.run(
            (self.program, *words), env=env, capture_output=True, text=True, check=True, timeout=120
        )
        return done.stdout

    def containers(self) -> list[str]:
        """Every container, by id, ended or not."""
        return self.say("ps", "--all", "--quiet", "--no-trunc").split()


def host_mounts() -> dict[str, str]:
    """What an empty image needs to run this Python with everything that it imports, read-only."""
    root = Path(__file__).parents[2]
    places = {"/usr", "/lib", "/lib64", sys.base_prefix, sys.prefix, str(root)}
    return {place: f"{place}:ro" for place in sorted(places) if Path(place).exists()}


def working_podman(folder: Path) -> Podman | str:
    """A podman that runs the empty image, or why none can."""
    program = shutil.which("podman")
    if program is None:
        return "podman is not installed (apt-get install podman runc catatonit)"
    (folder / "storage.conf").write_text(_STORAGE.format(folder=folder))
    said = ""
    for number, settings in enumerate(_SETTINGS):
        conf = folder / f"containers-{number}.conf"
        conf.write_text(settings)
        podman = Podman(
            program,
            {"CONTAINERS_CONF": str(conf), "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf")},
        )
        try:
            _make_image(podman, folder)
            podman.say("run", "--rm", "--network", "host", *_limits(), *_true(), IMAGE)
            return podman
        except subprocess.CalledProcessError as error:
            said = str(error.stderr).strip()[-300:]
        except subprocess.TimeoutExpired:
            said = "it took longer than two minutes"
    return f"podman runs no container on this machine: {said}"


def _make_image(podman: Podman, folder: Path) -> None:
    with tarfile.open(folder / "empty.tar", "w") as archive:
        for name in ("tmp", "proc", "dev", "sys"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(entry)
    podman.say("import", str(folder / "empty.tar"), IMAGE)


def _true() -> list[str]:
    return [
        "--volume",
        "/usr:/usr:ro",
        "--volume",
        "/lib:/lib:ro",
        "--volume",
        "/lib64:/lib64:ro",
        "--entrypoint",
        "/usr/bin/true",
    ]


def _limits() -> list[str]:
    return ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
