"""Unpacks checked archives into trees of files. Removes such trees, but keeps files that were added
to them later.
"""

import csv
import hashlib
import os
import shutil
import signal
import tarfile
import zipfile
from typing import BinaryIO

from fleet_controller.deploy.remote.atomic_files import (
    UNFINISHED_SUFFIX,
    InstallRefused,
    remove_empty,
)

CHUNK = 1 << 20
SILENCE_TIMEOUT_S = 300  # without it, a lost connection could hold the lock for hours


def receive_file(source: BinaryIO, path: str, size: int, sha256: str) -> None:
    """Write `size` bytes of `source` into a file. Raises InstallRefused for a wrong digest."""
    digest, left = hashlib.sha256(), size
    write_error = None
    with open(path, "wb") as file:
        os.chmod(path, 0o600)
        while left:
            signal.alarm(SILENCE_TIMEOUT_S)
            chunk = source.read(min(CHUNK, left))
            if not chunk:
                raise InstallRefused("the connection ended")
            left -= len(chunk)
            digest.update(chunk)
            try:
                if write_error is None:
                    file.write(chunk)
            except OSError as error:
                write_error = error  # read on: the next frame comes after this content
    if write_error is not None:
        raise write_error
    if digest.hexdigest() != sha256:
        raise InstallRefused(f"a file of {size} bytes arrived damaged")


def unpack_wheel(archive: str, target: str) -> None:
    """Unpack a wheel. Executable files stay executable.

    Raises InstallRefused for a file that RECORD does not list or a name that leads out of the tree.
    """
    with zipfile.ZipFile(archive) as wheel:
        entries = [entry for entry in wheel.infolist() if not entry.filename.endswith("/")]
        record = next(
            (
                entry
                for entry in entries
                if is_record(entry.filename) and entry.filename.endswith("RECORD")
            ),
            None,
        )
        if record is None:
            raise InstallRefused("a wheel has no RECORD")
        listed = record_names(wheel.read(record).decode())
        for entry in entries:
            name = entry.filename
            if name not in listed and not is_record(name):
                raise InstallRefused(f"a wheel contains {name}, which its RECORD does not list")
            place = path_in_install(name)
            path = os.path.join(target, place)
            if not os.path.normpath(path).startswith(target + "/"):
                raise InstallRefused(f"a wheel contains {name}, which leads out of its folder")
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            with wheel.open(entry) as content, open(path, "wb") as file:
                shutil.copyfileobj(content, file, CHUNK)
            os.chmod(path, 0o755 if (entry.external_attr >> 16) & 0o111 else 0o644)
    write_file_list(target)


def is_record(name: str) -> bool:
    """Return True for a wheel's own RECORD or its signature. Return False for the RECORD of a
    vendored package.
    """
    folder, _, file = name.partition("/")
    return folder.endswith(".dist-info") and file in ("RECORD", "RECORD.jws", "RECORD.p7s")


def record_names(text: str) -> "set[str]":
    """Return the names that a RECORD lists."""
    return {row[0] for row in csv.reader(text.splitlines()) if row}


def path_in_install(name: str) -> str:
    """Return the installed path of a wheel's file: `x.data/purelib/a.py` belongs at `a.py`.

    An agent does not use the other folders of `x.data`, so the files in them keep their path.
    """
    parts = name.split("/")
    if len(parts) > 2 and parts[0].endswith(".data") and parts[1] in ("purelib", "platlib"):
        return "/".join(parts[2:])
    return name


def unpack_tar(archive: str, target: str) -> None:
    """Unpack a tar file. Raises InstallRefused when a name or link leads out of the tree."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            if not stays_inside(member, target):
                raise InstallRefused(
                    f"the archive of Python contains {member.name}, which leads out of its folder"
                )
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            tar.extract(
                member, target, set_attrs=not member.issym(), numeric_owner=os.getuid() == 0
            )
    write_file_list(target)


def stays_inside(member: tarfile.TarInfo, target: str) -> bool:
    """Return True for a file, a folder, or a symbolic link to something in the same tree.

    Links that were unpacked before are followed: if `a/b` is a link to `.`, then `a/b/..` is not
    `a`. For the same reason `..` may only be at the beginning of a link.
    """
    root = os.path.realpath(target)
    folder = os.path.realpath(os.path.dirname(os.path.join(target, member.name)))
    to = os.path.normpath(os.path.join(folder, member.linkname if member.issym() else "."))
    behind = member.linkname.split("/")
    while behind and behind[0] == "..":
        del behind[0]
    return (
        (member.isfile() or member.isdir() or member.issym())
        and ".." not in [*member.name.split("/"), *behind]
        and all((place + "/").startswith(root + "/") for place in (folder, to))
    )


def write_file_list(target: str) -> None:
    """Write the names of all files of a tree to `.files`, so that files added later can be
    recognised.
    """
    found = set()
    for folder, folders, files in os.walk(target):
        for name in files + [
            name for name in folders if os.path.islink(os.path.join(folder, name))
        ]:
            found.add(os.path.relpath(os.path.join(folder, name), target))
    with open(os.path.join(target, ".files"), "w") as file:
        file.write("".join(name + "\n" for name in sorted(found)))


def remove_tree(root: str) -> "list[str]":
    """Remove a tree, but keep the files that were not unpacked with it. Return the paths that stay.

    An unfinished tree was never used, so all of it is removed.
    """
    if not os.path.isdir(root):
        return []
    if os.path.basename(root).endswith(UNFINISHED_SUFFIX) or not os.path.isfile(
        os.path.join(root, ".files")
    ):
        shutil.rmtree(root)
        return []
    with open(os.path.join(root, ".files")) as file:
        own_files = set(file.read().splitlines()) | {".files"}
    left = []
    for folder, folders, files in os.walk(root, topdown=False):
        for name in files + [
            name for name in folders if os.path.islink(os.path.join(folder, name))
        ]:
            path = os.path.join(folder, name)
            is_ours = os.path.relpath(path, root) in own_files or (
                name.endswith(".pyc") and folder.endswith("/__pycache__")
            )
            if not is_ours or not try_unlink(path):
                left.append(path)
        remove_empty(folder)
    return left


def try_unlink(path: str) -> bool:
    """Remove a file. Return False if this is not permitted, such as in another user's folder."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def remove_paths(paths: "list[str]") -> None:
    """Remove files, links and whole folders that an agent created."""
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)
