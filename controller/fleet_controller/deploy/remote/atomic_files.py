"""Owns writing on a host's disk: after a power cut there is the old or the new, never half. Runs on
hosts, Python 3.6 and newer.
"""

import os
import pwd
import stat
from typing import Any

UNFINISHED_SUFFIX = ".benchfleet-new"  # what ends the name of everything unfinished


class InstallRefused(Exception):
    """What stands in the way, for the user to read."""


def set_owner(path: str, frame: "dict[str, Any]") -> None:
    """Set mode and owner; the owner's name decides, its ids may not be known to whoever asks."""
    if frame.get("owner"):
        user = pwd.getpwnam(frame["owner"])
        os.chown(path, user.pw_uid if frame.get("owned") else 0, user.pw_gid)
    os.chmod(path, frame["mode"])


def switch_link(path: str, to: str) -> None:
    """Let the link `path` point to `to`, at once."""
    new = path + UNFINISHED_SUFFIX
    if os.path.lexists(new):
        os.unlink(new)
    os.symlink(to, new)
    os.rename(new, path)
    sync_folder(os.path.dirname(path))


def remove_empty(path: str) -> bool:
    """Whether a folder is gone afterwards: one with something in it stays."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def write_synced(path: str, content: bytes, mode: int) -> None:
    """A file on disk, not yet under its final name."""
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
    """What was renamed in a folder stays so after a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_disk(path: str) -> None:
    """All of the file system that holds `path`: thousands of files at once are faster so than one
    by one.
    """
    import ctypes

    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        ctypes.CDLL(None).syncfs(descriptor)
    except (AttributeError, OSError):
        os.sync()
    finally:
        os.close(descriptor)
