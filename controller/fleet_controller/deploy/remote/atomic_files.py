"""Writes files on a host so that a power cut leaves the whole old file or the whole new file."""

import os
import pwd
import stat
from typing import Any

UNFINISHED_SUFFIX = ".benchfleet-new"  # ends the name of everything that is not complete yet


class InstallRefused(Exception):
    """The installer refuses a command. The message is for the user."""


def set_owner(path: str, frame: "dict[str, Any]") -> None:
    """Set mode and owner of a path. The owner's name is looked up on this host."""
    if frame.get("owner"):
        user = pwd.getpwnam(frame["owner"])
        os.chown(path, user.pw_uid if frame.get("owned") else 0, user.pw_gid)
    os.chmod(path, frame["mode"])


def switch_link(path: str, to: str) -> None:
    """Point the link `path` to `to`, atomically."""
    new = path + UNFINISHED_SUFFIX
    if os.path.lexists(new):
        os.unlink(new)
    os.symlink(to, new)
    os.rename(new, path)
    sync_folder(os.path.dirname(path))


def remove_empty(path: str) -> bool:
    """Remove a folder if it is empty. Return True if it does not exist afterwards."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def write_synced(path: str, content: bytes, mode: int) -> None:
    """Write a file and flush it to disk. The caller renames it to its final name."""
    descriptor = os.open(
        path,
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW,
        stat.S_IRUSR | stat.S_IWUSR,
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def sync_folder(path: str) -> None:
    """Flush a folder to disk, so that renames in it survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_disk(path: str) -> None:
    """Flush the file system that holds `path`. For many files this is faster than flushing each
    file.
    """
    import ctypes

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    except (AttributeError, OSError):
        os.sync()
    finally:
        os.close(descriptor)
