"""Owns the changes that deploy makes on a host: each whole or not at all, each on the list of what
was made. Decides nothing.

Runs on the host (Python 3.6 and newer) for one SSH session, holding the lock of the installation; a
frame in is a line of JSON, with `size` raw bytes behind it where it brings some, and each is
answered by one line of JSON.
"""

import fcntl
import glob
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from typing import Any, BinaryIO

from fleet_controller.deploy.remote.atomic_files import (
    UNFINISHED_SUFFIX,
    InstallRefused,
    remove_empty,
    set_owner,
    switch_link,
    sync_disk,
    sync_folder,
    write_synced,
)
from fleet_controller.deploy.remote.file_trees import (
    SILENCE_TIMEOUT_S,
    receive_file,
    remove_paths,
    remove_tree,
    unpack_tar,
    unpack_wheel,
    write_file_list,
)

MADE_LIST = "made.jsonl"
NO_SPACE_ERRNOS = (28, 122)  # ENOSPC, EDQUOT


class Installation:
    """The folder of one installation, and the list of all that was made for it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.made: list[dict[str, Any]] = []
        self.lock = -1

    # Beginning

    def begin(self, frame: "dict[str, Any]", _: BinaryIO) -> "dict[str, Any]":
        """Make the root when it is missing, take its lock, read its list."""
        self.root = frame["root"]
        if not os.path.isdir(self.root) or not os.listdir(self.root):
            self._make_root()
        self._take_lock(float(frame["wait_s"]))
        if not os.path.isfile(self._path_in_root(MADE_LIST)):
            raise InstallRefused(
                f"{self.root} exists and was not made by a deploy: move it away, or set install.path"
            )
        self.made = read_list(self._path_in_root(MADE_LIST))
        self._record_made({"kind": "install", "mode": frame["mode"]})
        return {}

    def _make_root(self) -> None:
        """The whole path at once, so that what was made is on the list from its first moment."""
        top = self.root
        while not os.path.isdir(os.path.dirname(top)):
            top = os.path.dirname(top)
        new = top + UNFINISHED_SUFFIX
        shutil.rmtree(new, ignore_errors=True)
        inside = new + self.root[len(top) :]
        os.makedirs(inside, 0o755)
        made, path = [], self.root
        while len(path) >= len(top):
            made.append({"kind": "folder", "path": path})
            path = os.path.dirname(path)
        write_synced(
            inside + "/" + MADE_LIST,
            "".join(json.dumps(entry) + "\n" for entry in reversed(made)).encode(),
            0o644,
        )
        if os.path.isdir(top):
            os.rmdir(top)
        os.rename(new, top)
        sync_folder(os.path.dirname(top))

    def _take_lock(self, wait_s: float) -> None:
        self.lock = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        until = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise InstallRefused(
                        f"another deploy is at work in {self.root}: wait until it is over"
                    ) from None
                time.sleep(0.1)

    # The list

    def _path_in_root(self, name: str) -> str:
        return os.path.join(self.root, name)

    def _record_made(self, entry: "dict[str, Any]") -> None:
        """On disk before what it names comes to be."""
        if entry in self.made:
            return
        line = json.dumps(entry) + "\n"
        with open(self._path_in_root(MADE_LIST), "rb+") as file:
            content = file.read()
            file.write(
                line.encode() if content.endswith(b"\n") or not content else b"\n" + line.encode()
            )
            file.flush()
            os.fsync(file.fileno())
        self.made.append(entry)

    def _is_ours(self, path: str) -> bool:
        return any(entry.get("path") == path for entry in self.made)

    # Changes

    def folder(self, frame: "dict[str, Any]", _: BinaryIO) -> "dict[str, Any]":
        """A folder with a mode and an owner. One that was there before is used as it is."""
        path, agents = (
            frame["path"],
            [os.path.join(frame["path"], name) for name in frame["agents"]],
        )
        if agents and (not any(map(os.path.lexists, agents)) or self._is_ours(path)):
            self._record_made({"kind": "state", "paths": agents})
        if not os.path.isdir(path):
            self._record_made({"kind": "folder", "path": path})
            os.mkdir(path, 0o700)
        if self._is_ours(path):
            set_owner(path, frame)
        return {}

    def put(self, frame: "dict[str, Any]", source: BinaryIO) -> "dict[str, Any]":
        """A file with its content; one that deploy did not make is left, and told."""
        path, content = frame["path"], source.read(frame["size"])
        if len(content) != frame["size"] or hashlib.sha256(content).hexdigest() != frame["sha256"]:
            raise InstallRefused(f"{path} arrived damaged")
        if os.path.lexists(path) and not self._is_ours(path):
            raise InstallRefused(f"{path} exists and was not made by a deploy: move it away")
        self._record_made({"kind": "file", "path": path})
        new = path + UNFINISHED_SUFFIX
        write_synced(new, content, 0o600)
        set_owner(new, frame)
        os.rename(new, path)
        sync_folder(os.path.dirname(path))
        return {}

    def wheel(self, frame: "dict[str, Any]", source: BinaryIO) -> "dict[str, Any]":
        """A wheel, checked by its digest and unpacked under its own name."""
        return self._unpack("wheels", frame, source, unpack_wheel)

    def python(self, frame: "dict[str, Any]", source: BinaryIO) -> "dict[str, Any]":
        """A relocatable Python as a tar file, checked by its digest."""
        return self._unpack("pythons", frame, source, unpack_tar)

    def _unpack(
        self, folder: str, frame: "dict[str, Any]", source: BinaryIO, unpack: Any
    ) -> "dict[str, Any]":
        target = self._path_in_root(os.path.join(folder, frame["name"]))
        archive, new = (
            self._path_in_root(".incoming" + UNFINISHED_SUFFIX),
            os.path.join(os.path.dirname(target), "." + frame["name"] + UNFINISHED_SUFFIX),
        )
        shutil.rmtree(new, ignore_errors=True)
        try:
            receive_file(source, archive, frame["size"], frame["sha256"])
            if not os.path.isdir(target):
                self._record_made({"kind": "tree", "path": target})
                os.mkdir(new, 0o755)
                unpack(archive, new)
                sync_disk(new)
                os.rename(new, target)
                sync_folder(os.path.dirname(target))
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        finally:
            if os.path.exists(archive):
                os.unlink(archive)
        return {}

    def version(self, frame: "dict[str, Any]", _: BinaryIO) -> "dict[str, Any]":
        """A version: small files and links that put wheels and an interpreter together."""
        target = self._path_in_root(os.path.join("versions", frame["name"]))
        new = self._path_in_root(os.path.join("versions", "." + frame["name"] + UNFINISHED_SUFFIX))
        if os.path.isdir(target):
            return {}
        self._record_made({"kind": "tree", "path": target})
        shutil.rmtree(new, ignore_errors=True)
        for name, content, mode in frame["files"]:
            path = os.path.join(new, name)
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            write_synced(path, content.encode(), mode)
        for name, to in frame["links"]:
            os.makedirs(os.path.dirname(os.path.join(new, name)), 0o755, exist_ok=True)
            os.symlink(to, os.path.join(new, name))
        write_file_list(new)
        sync_disk(new)
        os.rename(new, target)
        sync_folder(os.path.dirname(target))
        return {}

    def link(self, frame: "dict[str, Any]", _: BinaryIO) -> "dict[str, Any]":
        """A symbolic link, switched at once."""
        path = frame["path"]
        self._record_made({"kind": "file", "path": path})
        switch_link(path, frame["to"])
        return {}

    def run(self, frame: "dict[str, Any]", _: BinaryIO) -> "dict[str, Any]":
        """A program. What it makes is undone by `undo`, which goes on the list first."""
        if frame.get("undo"):
            self._record_made({"kind": "undo", "argv": frame["undo"]})
        code, out, error = run_program(frame["argv"], frame["timeout_s"])
        if frame.get("restarts") and os.path.isdir(self._path_in_root("rollback")):
            write_synced(self._path_in_root("rollback/restarted"), b"", 0o600)
        return {"code": code, "out": out, "error": error}

    # Going back

    def remember(self, frame: "dict[str, Any]", _: BinaryIO) -> "dict[str, Any]":
        """Keep the files and the link that a switch replaces. What an interrupted switch had kept
        is older, and stays.
        """
        folder = self._path_in_root("rollback")
        self._record_made({"kind": "tree", "path": folder})
        if os.path.isfile(os.path.join(folder, "remembered.json")):
            return {}
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder, 0o700)
        kept = []
        for number, path in enumerate(frame["paths"]):
            if os.path.isfile(path):
                about = os.stat(path)
                with open(path, "rb") as file:
                    write_synced(os.path.join(folder, str(number)), file.read(), 0o600)
                kept.append([path, number, about.st_mode & 0o7777, about.st_uid, about.st_gid])
        state = {
            "current": read_link(self._path_in_root("current")),
            "previous": read_link(self._path_in_root("previous")),
            "files": kept,
        }
        write_synced(os.path.join(folder, "remembered.json"), json.dumps(state).encode(), 0o600)
        sync_folder(folder)
        return {}

    def restore(self, _: "dict[str, Any]", __: BinaryIO) -> "dict[str, Any]":
        """Put back what `remember` kept; `current` is empty when there was no version before."""
        folder = self._path_in_root("rollback")
        with open(os.path.join(folder, "remembered.json")) as file:
            state = json.load(file)
        for path, number, mode, uid, gid in state["files"]:
            with open(os.path.join(folder, str(number)), "rb") as file:
                write_synced(path + UNFINISHED_SUFFIX, file.read(), mode)
            os.chown(path + UNFINISHED_SUFFIX, uid, gid)
            os.rename(path + UNFINISHED_SUFFIX, path)
        for name in ("current", "previous"):
            if state[name]:
                switch_link(self._path_in_root(name), state[name])
            elif os.path.islink(self._path_in_root(name)):
                os.unlink(self._path_in_root(name))
        remove_tree(folder)
        return {"current": state["current"]}

    def forget(self, frame: "dict[str, Any]", _: BinaryIO) -> "dict[str, Any]":
        """The switch is good: drop what was kept for going back, and all versions and wheels but
        the named ones.
        """
        left = remove_tree(self._path_in_root("rollback"))
        frame["keep"] += self._names_of_previous()
        for folder in ("versions", "wheels", "pythons"):
            for name in (
                os.listdir(self._path_in_root(folder))
                if os.path.isdir(self._path_in_root(folder))
                else []
            ):
                if name not in frame["keep"]:
                    left += remove_tree(self._path_in_root(os.path.join(folder, name)))
        self._rewrite_made(
            [
                entry
                for entry in self.made
                if entry["kind"] != "tree" or os.path.isdir(entry["path"])
            ]
        )
        return {"left": left[:20]}

    def _names_of_previous(self) -> "list[str]":
        """The version before and what it is made of."""
        previous = os.path.basename(read_link(self._path_in_root("previous")))
        folder = self._path_in_root(os.path.join("versions", previous))
        used = [
            previous,
            read_link(os.path.join(folder, "bin/python3"))
            .replace(self._path_in_root("pythons/"), "")
            .split("/")[0],
        ]
        for path in (
            glob.glob(os.path.join(folder, "lib/*/site-packages/benchfleet.pth"))
            if previous
            else []
        ):
            with open(path) as file:
                used += [os.path.basename(line.strip()) for line in file]
        return used

    def _rewrite_made(self, made: "list[dict[str, Any]]") -> None:
        if made != self.made:
            write_synced(
                self._path_in_root(MADE_LIST) + UNFINISHED_SUFFIX,
                "".join(json.dumps(entry) + "\n" for entry in made).encode(),
                0o644,
            )
            os.rename(
                self._path_in_root(MADE_LIST) + UNFINISHED_SUFFIX, self._path_in_root(MADE_LIST)
            )
            sync_folder(self.root)
            self.made = made

    # Taking all away

    def remove(self, frame: "dict[str, Any]", _: BinaryIO) -> "dict[str, Any]":
        """Everything on the list, newest first; what others put there stays and is told. The list
        itself goes last.
        """
        left: list[str] = []
        troubles: list[str] = []
        for entry in reversed(self.made):
            if entry["kind"] == "undo":
                troubles += run_undo(entry["argv"])
            elif entry["kind"] == "file":
                remove_file(entry["path"])
            elif entry["kind"] == "tree":
                left += remove_tree(entry["path"])
            elif entry["kind"] == "state":
                remove_paths(entry["paths"])
        for name in frame["logs"]:
            remove_file(self._path_in_root(name))
        left += self._remove_folders()
        innermost = [
            path for path in left if not any(other.startswith(path + "/") for other in left)
        ]
        return {"left": innermost[:20], "troubles": troubles}

    def _remove_folders(self) -> "list[str]":
        """The folders that are empty now; what is in the others, which stays."""
        folders = [entry["path"] for entry in self.made if entry["kind"] == "folder"]
        inside = [path for path in folders if path.startswith(self.root + "/")]
        left = remove_empty_folders(inside)
        for name in (MADE_LIST + UNFINISHED_SUFFIX, ".incoming" + UNFINISHED_SUFFIX, MADE_LIST):
            remove_file(self._path_in_root(name))
        return left + remove_empty_folders([path for path in folders if path not in inside])


def read_link(path: str) -> str:
    """Where a link points, empty without one."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def read_list(path: str) -> "list[dict[str, Any]]":
    """The entries of a list; a torn line names nothing that was made."""
    made = []
    with open(path) as file:
        for line in file:
            try:
                made.append(json.loads(line))
            except ValueError:
                continue
    return made


def run_program(argv: "list[str]", timeout_s: float) -> "tuple[int, str, str]":
    """(exit code, output, errors) of a program in a session of its own; 124 when it took too long,
    127 when there is none.
    """
    environment = dict(os.environ, LC_ALL="C.UTF-8")
    environment.setdefault(
        "XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}"
    )  # systemctl --user asks there; where there is no PAM to set it
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return 127, "", f"{argv[0]}: {error.strerror}"
    try:
        out, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return 124, "", f"no end after {timeout_s:g} s"
    return (
        process.returncode,
        out.decode(errors="replace")[-65536:],
        errors.decode(errors="replace")[-65536:],
    )


def remove_empty_folders(folders: "list[str]") -> "list[str]":
    """Remove what is empty of these, the innermost first; the contents of what is not."""
    left = []
    for path in sorted(folders, key=len, reverse=True):
        if not remove_empty(path):
            left += [
                os.path.join(path, name)
                for name in sorted(os.listdir(path))
                if os.path.join(path, name) not in folders
            ]
    return left


def run_undo(argv: "list[str]") -> "list[str]":
    """Take back what a program made; what it says when it cannot."""
    code, _, error = run_program(argv, 60.0)
    return [f"{' '.join(argv)}: {error.strip()[-200:]}"] if code != 0 else []


def remove_file(path: str) -> None:
    """Remove a file, and what an interrupted write of it left."""
    for name in (path, path + UNFINISHED_SUFFIX):
        if os.path.lexists(name):
            os.unlink(name)


def handle_frame(
    installation: Installation, frame: "dict[str, Any]", source: BinaryIO
) -> "dict[str, Any]":
    """What came of one frame; nothing that goes wrong ends the session."""
    try:
        result: dict[str, Any] = getattr(installation, frame["op"])(frame, source)
        return dict(result, ok=True)
    except InstallRefused as error:
        return {"ok": False, "error": str(error), "kind": "refused"}
    except OSError as error:
        kind = "full" if error.errno in NO_SPACE_ERRNOS else "os"
        where = error.filename or frame.get("path") or installation.root
        return {"ok": False, "error": f"{where}: {error.strerror}", "kind": kind}
    except (KeyError, ValueError, zipfile.BadZipFile, tarfile.TarError) as error:
        return {"ok": False, "error": f"{frame['op']}: {error!r}", "kind": "bug"}


def main() -> None:
    """Answer frames until the connection ends; whatever happens then, the lock is free."""
    os.umask(0o022)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    installation = Installation("")
    while True:
        signal.alarm(SILENCE_TIMEOUT_S)
        line = source.readline()
        if not line.endswith(b"\n"):
            return
        frame = json.loads(line.decode())
        signal.alarm(0)
        target.write(json.dumps(handle_frame(installation, frame, source)).encode() + b"\n")
        target.flush()


if __name__ == "__main__":
    main()
