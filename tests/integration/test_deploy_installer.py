"""Promises of the programs that run on hosts: the installer, the keeper and the probe, as processes
of this machine's own interpreters.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet_controller.deploy.installer_session import INSTALLER, remote_source
from fleet_controller.deploy.own_wheels import AGENT_WHEEL, SIMULATOR_WHEEL
from fleet_controller.deploy.remote.probe import STARTER

KEEPER = Path(__file__).parents[2] / "controller/fleet_controller/deploy/remote/keeper.py"
OLD_PYTHONS = [
    str(path)
    for path in sorted(Path("~/.pyenv/versions").expanduser().glob("3.[6-9].*/bin/python"))
]


class Installer:
    """One session, as a deploy has it over SSH."""

    def __init__(self, root: Path, python: str = sys.executable) -> None:
        self.root = root
        starter, sources = INSTALLER
        self.process = subprocess.Popen(
            [python, "-I", "-c", starter], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._write(b"%d\n%s" % (len(sources), sources))
        self.begun = self.ask({"op": "begin", "root": str(root), "mode": "daemon", "wait_s": 0.2})

    def _write(self, content: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(content)
        self.process.stdin.flush()

    def ask(self, frame: dict[str, Any], payload: bytes = b"") -> dict[str, Any]:
        """The answer to one frame."""
        assert self.process.stdout is not None
        if payload:
            frame = {"size": len(payload), "sha256": hashlib.sha256(payload).hexdigest(), **frame}
        self._write(json.dumps(frame).encode() + b"\n" + payload)
        told: dict[str, Any] = json.loads(self.process.stdout.readline())
        return told

    def folder(self, name: str) -> dict[str, Any]:
        return self.ask(
            {"op": "folder", "path": str(self.root / name), "mode": 0o755, "agents": []}
        )

    def put(self, path: Path, content: bytes) -> dict[str, Any]:
        return self.ask({"op": "put", "path": str(path), "mode": 0o640}, content)

    def remove(self) -> dict[str, Any]:
        return self.ask({"op": "remove", "logs": []})

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture
def installer(tmp_path: Path) -> Iterator[Installer]:
    opened = Installer(tmp_path / "a/b/root")
    yield opened
    opened.close()


def wheel(files: dict[str, bytes], record: str | None = None) -> bytes:
    """A wheel with these files; `record` replaces the list that belongs to them."""
    listed = "".join(f"{name},,\n" for name in files)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as packed:
        for name, content in {
            **files,
            "x-1.dist-info/RECORD": (listed if record is None else record).encode(),
        }.items():
            packed.writestr(name, content)
    return target.getvalue()


def test_what_was_made_is_removed_with_the_folders_above_it(
    installer: Installer, tmp_path: Path
) -> None:
    installer.folder("wheels")
    assert installer.ask({"op": "wheel", "name": "own"}, AGENT_WHEEL.build())["ok"]
    assert (installer.root / "wheels/own/fleet_agent/main.py").exists(), AGENT_WHEEL.file_name
    installer.put(installer.root / "agent.toml", b"x")
    assert installer.remove() == {"ok": True, "left": [], "troubles": []}
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_others_is_neither_overwritten_nor_removed(installer: Installer) -> None:
    theirs = installer.root / "theirs"
    theirs.write_bytes(b"theirs")
    refused = installer.put(theirs, b"ours")
    assert (refused["ok"], refused["kind"]) == (False, "refused")
    assert installer.remove()["left"] == [str(theirs)]
    assert theirs.read_bytes() == b"theirs"


def test_files_that_others_put_among_unpacked_ones_stay_and_bytecode_goes(
    installer: Installer,
) -> None:
    installer.folder("wheels")
    installer.ask({"op": "wheel", "name": "x"}, wheel({"x/__init__.py": b""}))
    (installer.root / "wheels/x/x/__pycache__").mkdir()
    (installer.root / "wheels/x/x/__pycache__/__init__.cpython-311.pyc").touch()
    (installer.root / "wheels/x/x/theirs.py").touch()
    assert installer.remove()["left"] == [str(installer.root / "wheels/x/x/theirs.py")]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (wheel({"x/a.py": b""}, record=""), "RECORD does not list"),
        (wheel({"../../../escaped.py": b""}), "leads out of it"),
        (wheel({"/escaped.py": b""}), "leads out of it"),
    ],
    ids=["unlisted", "upwards", "absolute"],
)
def test_a_wheel_that_is_not_what_its_list_says_leaves_nothing(
    installer: Installer, content: bytes, why: str
) -> None:
    installer.folder("wheels")
    told = installer.ask({"op": "wheel", "name": "x"}, content)
    assert (told["ok"], why in told["error"]) == (False, True)
    assert list((installer.root / "wheels").iterdir()) == []


def test_a_wheel_that_arrives_damaged_leaves_nothing(installer: Installer) -> None:
    installer.folder("wheels")
    told = installer.ask({"op": "wheel", "name": "x", "sha256": "0" * 64}, wheel({"x.py": b""}))
    assert (told["ok"], told["error"].endswith("arrived damaged")) == (False, True)
    assert sorted(path.name for path in installer.root.iterdir()) == ["made.jsonl", "wheels"]
    assert list((installer.root / "wheels").iterdir()) == []


def test_a_python_whose_links_hide_the_way_out_is_refused(installer: Installer) -> None:
    """By its letters `a/b/link/../x` is `a/b/x`; with the link followed it is outside."""
    installer.folder("pythons")
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as tar:
        for name in ("a", "a/b"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        link = tarfile.TarInfo("a/b/link")
        link.type, link.linkname = tarfile.SYMTYPE, "../.."
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("a/b/link/../escaped"), io.BytesIO())
    told = installer.ask({"op": "python", "name": "p"}, target.getvalue())
    assert (told["ok"], "leads out of it" in told["error"]) == (False, True)
    assert not list(installer.root.rglob("escaped"))
    assert list((installer.root / "pythons").iterdir()) == []


@pytest.mark.parametrize("linked", ["/etc/passwd", "../../../up", "x/../../../up"])
def test_a_python_whose_links_lead_out_of_it_is_refused(installer: Installer, linked: str) -> None:
    installer.folder("pythons")
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as tar:
        member = tarfile.TarInfo("bin/python3")
        member.type, member.linkname = tarfile.SYMTYPE, linked
        tar.addfile(member)
    told = installer.ask({"op": "python", "name": "p"}, target.getvalue())
    assert (told["ok"], "leads out of it" in told["error"]) == (False, True)
    assert list((installer.root / "pythons").iterdir()) == []


def test_the_lock_is_held_for_one_session_and_free_when_it_is_killed(installer: Installer) -> None:
    second = Installer(installer.root)
    assert (second.begun["ok"], "another deploy is running" in second.begun["error"]) == (
        False,
        True,
    )
    second.close()
    installer.process.kill()
    installer.process.wait()
    third = Installer(installer.root)
    assert third.begun["ok"]
    third.close()


def test_going_back_brings_files_and_links_as_they_were(installer: Installer) -> None:
    config = installer.root / "agent.toml"
    installer.put(config, b"old")
    installer.ask({"op": "link", "path": str(installer.root / "current"), "to": "versions/1"})
    installer.ask({"op": "remember", "paths": [str(config)]})
    installer.put(config, b"new")
    installer.ask({"op": "link", "path": str(installer.root / "current"), "to": "versions/2"})
    installer.ask(
        {"op": "remember", "paths": [str(config)]}
    )  # of a run that goes on where one was cut off: the first is what was well
    assert installer.ask({"op": "restore"})["current"] == "versions/1"
    assert (config.read_bytes(), os.readlink(installer.root / "current")) == (b"old", "versions/1")


@pytest.mark.parametrize("python", OLD_PYTHONS)
def test_an_old_python_can_install_and_probe(python: str, tmp_path: Path) -> None:
    installer = Installer(tmp_path / "root", python)
    assert installer.begun["ok"]
    installer.folder("wheels")
    assert installer.ask({"op": "wheel", "name": "own"}, AGENT_WHEEL.build())["ok"]
    asked = {
        "roots": [[str(tmp_path / "root"), "/var"]],
        "users": ["root"],
        "python": "",
        "sudo": False,
        "source": remote_source("probe"),
    }
    done = subprocess.run(
        [python, "-I", "-c", STARTER],
        input=json.dumps(asked) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    [found] = json.loads(done.stdout)["installed"]
    assert (found["mode"], found["wheels"]) == ("daemon", ["own"])
    assert installer.remove()["left"] == []
    installer.close()


AGENT = """\
#!{python}
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
open({started!r}, "a").write("started\\n")
time.sleep({lives_s})
sys.exit(3)
"""


def laid(root: Path, lives_s: float) -> Path:
    """An installation whose agent lives so long, then fails; the file that tells its starts."""
    (root / "current/bin").mkdir(parents=True)
    started = root / "started"
    program = root / "current/bin/fleet-agent"
    program.write_text(AGENT.format(python=sys.executable, started=str(started), lives_s=lives_s))
    program.chmod(0o755)
    return started


def keeper(action: str, root: Path) -> int:
    return subprocess.run(
        [sys.executable, "-I", str(KEEPER), action, str(root)],
        check=False,
        stdin=subprocess.DEVNULL,
    ).returncode


def until(true: Any, promise: str) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, promise
        time.sleep(0.02)


def test_a_keeper_starts_an_agent_that_failed_again_and_tells_that_it_is_not_steady(
    tmp_path: Path,
) -> None:
    started = laid(tmp_path, 0.0)
    assert keeper("start", tmp_path) == 0
    until(
        lambda: started.exists() and started.read_text().count("started") > 1, "it is started again"
    )
    assert (keeper("status", tmp_path), keeper("steady", tmp_path)) == (0, 1)
    assert keeper("stop", tmp_path) == 0
    assert keeper("status", tmp_path) == 1


def test_a_keeper_that_was_killed_is_followed_by_one_that_keeps_the_same_agent(
    tmp_path: Path,
) -> None:
    started = laid(tmp_path, 3600.0)
    assert keeper("start", tmp_path) == 0
    until(started.exists, "it has started")
    told = json.loads((tmp_path / "keeper.json").read_text())
    os.kill(told["pid"], signal.SIGKILL)
    until(lambda: keeper("status", tmp_path) == 1, "it is gone")
    assert keeper("start", tmp_path) == 0
    after = json.loads((tmp_path / "keeper.json").read_text())
    assert (after["agent"], after["pid"] != told["pid"]) == (told["agent"], True)
    assert keeper("stop", tmp_path) == 0
    assert started.read_text().count("started") == 1


def test_a_process_that_was_given_the_keepers_id_is_not_ended(tmp_path: Path) -> None:
    laid(tmp_path, 0.0)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    told = {"pid": os.getpid(), "ticks": 1, "boot": boot, "agent": 0, "agent_ticks": 0}
    (tmp_path / "keeper.json").write_text(json.dumps(told))
    assert (keeper("status", tmp_path), keeper("stop", tmp_path)) == (1, 0)


def test_our_wheel_is_the_same_each_time_and_holds_no_controller_and_no_simulator() -> None:
    content = AGENT_WHEEL.build()
    assert content == AGENT_WHEEL.build()
    wheel = zipfile.ZipFile(io.BytesIO(content))
    names = wheel.namelist()
    packages = {name.split("/")[0] for name in names if "dist-info" not in name}
    assert packages == {
        "fleet_agent",
        "fleet_knowledge",
        "fleet_protos",
        "fleet_transport",
    }
    imported = re.findall(
        rb"^\s*(?:from|import) (fleet_\w+)",
        b"\n".join(wheel.read(name) for name in names if name.endswith(".py")),
        re.MULTILINE,
    )
    assert {name.decode() for name in imported} <= packages
    assert [name for name in names if name.endswith(".pyc")] == []


def test_the_simulator_is_a_wheel_of_its_own() -> None:
    names = zipfile.ZipFile(io.BytesIO(SIMULATOR_WHEEL.build())).namelist()
    packages = {name.split("/")[0] for name in names if "dist-info" not in name}
    assert (packages, SIMULATOR_WHEEL.file_name.split("-")[0]) == (
        {"fleet_simulator"},
        "benchfleet_simulator",
    )
