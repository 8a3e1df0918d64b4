"""Makes the changes of a deploy on a host. Each change is atomic and is recorded in the list of
made things.

It runs for one SSH session and holds the lock of the installation. A frame is a line of JSON,
followed by `size` raw bytes if it has content. The answer to a frame is one line of JSON.
"""

import fcntl
import glob
import hashlib
import json
import os
import shutil
import signal
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
from fleet_controller.deploy.remote.made_list import MADE_LIST, MadeList, list_content
from fleet_controller.deploy.remote.programs import run_program, run_undo
from fleet_controller.deploy.remote.rollback import read_link, restore_saved, save_for_rollback

NO_SPACE_ERRNOS = (28, 122)  # ENOSPC, EDQUOT


class Installation:
    """The folder of one installation. The `op` of a frame names the public method that handles the
    frame.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.made = MadeList("")
        self.lock = -1

    def begin(self, frame: "dict[str, Any]", _: BinaryIO) -> "dict[str, Any]":
        """Create the root if it is missing, take the installation's lock and read the list of made
        things.
        """
        self.root = frame["root"]
        if not os.path.isdir(self.root) or not os.listdir(self.root):
            self._make_root()
        self._take_lock(float(frame["wait_s"]))
        if not os.path.isfile(self._path_in_root(MADE_LIST)):
            raise InstallRefused(
                f"{self.root} exists and was not made by a deploy: move it away,"
                " or set install.path"
            )
        self.made = MadeList(self.root)
        self.made.record({"kind": "install", "mode": frame["mode"]})
        return {}

    def _make_root(self) -> None:
        """Create the whole path with one rename. The new root already has a list of made things,
        which names all new folders.
        """
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
        write_synced(inside + "/" + MADE_LIST, list_content(made[::-1]), 0o644)
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
                        f"another deploy is running in {self.root}: wait until it ends"
                    ) from None
                time.sleep(0.1)

    def _path_in_root(self, name: str) -> str:
        return os.path.join(self.root, name)

    def folder(self, frame: "dict[str, Any]", _: BinaryIO) -> "dict[str, Any]":
        """Create a folder with a mode and an owner. A folder that no deploy made stays as it is."""
        path, agents = (
            frame["path"],
            [os.path.join(frame["path"], name) for name in frame["agents"]],
        )
        if agents and (not any(map(os.path.lexists, agents)) or self.made.has_path(path)):
            self.made.record({"kind": "state", "paths": agents})
        if not os.path.isdir(path):
            self.made.record({"kind": "folder", "path": path})
            os.mkdir(path, 0o700)
        if self.made.has_path(path):
            set_owner(path, frame)
        return {}

    def put(self, frame: "dict[str, Any]", source: BinaryIO) -> "dict[str, Any]":
        """Write a file. Raises InstallRefused if it exists and no deploy made it."""
        path, content = frame["path"], source.read(frame["size"])
        if len(content) != frame["size"] or hashlib.sha256(content).hexdigest() != frame["sha256"]:
            raise InstallRefused(f"{path} arrived damaged")
        if os.path.lexists(path) and not self.made.has_path(path):
            raise InstallRefused(f"{path} exists and was not made by a deploy: move it away")
        self.made.record({"kind": "file", "path": path})
        new = path + UNFINISHED_SUFFIX
        write_synced(new, content, 0o600)
        set_owner(new, frame)
        os.rename(new, path)
        sync_folder(os.path.dirname(path))
        return {}

    def wheel(self, frame: "dict[str, Any]", source: BinaryIO) -> "dict[str, Any]":
        """Receive a wheel, check its digest and unpack it under its name."""
        return self._unpack("wheels", frame, source, unpack_wheel)

    def python(self, frame: "dict[str, Any]", source: BinaryIO) -> "dict[str, Any]":
        """Receive a relocatable Python in a tar file, check its digest and unpack it."""
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
                self.made.record({"kind": "tree", "path": target})
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
        """Make a version: the small files and links that combine wheels and an interpreter."""
        target = self._path_in_root(os.path.join("versions", frame["name"]))
        new = self._path_in_root(os.path.join("versions", "." + frame["name"] + UNFINISHED_SUFFIX))
        if os.path.isdir(target):
            return {}
        self.made.record({"kind": "tree", "path": target})
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
        """Switch a symbolic link atomically."""
        path = frame["path"]
        self.made.record({"kind": "file", "path": path})
        switch_link(path, frame["to"])
        return {}

    def run(self, frame: "dict[str, Any]", _: BinaryIO) -> "dict[str, Any]":
        """Run a program. The `undo` that reverses it is recorded first."""
        if frame.get("undo"):
            self.made.record({"kind": "undo", "argv": frame["undo"]})
        code, out, error = run_program(frame["argv"], frame["timeout_s"])
        if frame.get("restarts") and os.path.isdir(self._path_in_root("rollback")):
            write_synced(self._path_in_root("rollback/restarted"), b"", 0o600)
        return {"code": code, "out": out, "error": error}

    def remember(self, frame: "dict[str, Any]", _: BinaryIO) -> "dict[str, Any]":
        """Save the files and links that a switch to another version replaces."""
        self.made.record({"kind": "tree", "path": self._path_in_root("rollback")})
        save_for_rollback(self.root, frame["paths"])
        return {}

    def restore(self, _: "dict[str, Any]", __: BinaryIO) -> "dict[str, Any]":
        """Restore what `remember` saved. The answer's `current` is empty if there is no previous
        version.
        """
        return {"current": restore_saved(self.root)}

    def forget(self, frame: "dict[str, Any]", _: BinaryIO) -> "dict[str, Any]":
        """Accept the switch to the new version. Remove what was saved, and all versions, wheels and
        Pythons that neither `keep` names nor the previous version uses.
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
        self.made.rewrite(
            [
                entry
                for entry in self.made.entries
                if entry["kind"] != "tree" or os.path.isdir(entry["path"])
            ]
        )
        return {"left": left[:20]}

    def _names_of_previous(self) -> "list[str]":
        """Return the names of the previous version, its interpreter and its wheels."""
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

    def remove(self, frame: "dict[str, Any]", _: BinaryIO) -> "dict[str, Any]":
        """Remove everything that deploys made, newest first, then the list of it.

        The answer's `left` names files that no deploy made, which stay. The answer's `troubles` has
        errors.
        """
        left: list[str] = []
        troubles: list[str] = []
        for entry in reversed(self.made.entries):
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
        """Remove the folders that deploys made, where they are empty, and then the list of what
        deploys made. Return the paths in the folders that are not empty.
        """
        folders = [entry["path"] for entry in self.made.entries if entry["kind"] == "folder"]
        inside = [path for path in folders if path.startswith(self.root + "/")]
        left = remove_empty_folders(inside)
        for name in (MADE_LIST + UNFINISHED_SUFFIX, ".incoming" + UNFINISHED_SUFFIX, MADE_LIST):
            remove_file(self._path_in_root(name))
        return left + remove_empty_folders([path for path in folders if path not in inside])


def remove_empty_folders(folders: "list[str]") -> "list[str]":
    """Remove the folders that are empty, innermost first. Return the paths that stay in the other
    folders.
    """
    left = []
    for path in sorted(folders, key=len, reverse=True):
        if not remove_empty(path):
            left += [
                os.path.join(path, name)
                for name in sorted(os.listdir(path))
                if os.path.join(path, name) not in folders
            ]
    return left


def remove_file(path: str) -> None:
    """Remove a file, and the unfinished file of an interrupted write to it."""
    for name in (path, path + UNFINISHED_SUFFIX):
        if os.path.lexists(name):
            os.unlink(name)


def handle_frame(
    installation: Installation, frame: "dict[str, Any]", source: BinaryIO
) -> "dict[str, Any]":
    """Handle one frame and return its answer. An error becomes an answer too."""
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
    """Answer frames until the connection ends. The end of this process releases the lock."""
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
