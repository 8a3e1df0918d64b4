"""Limits the disk space of a server's files. A log that is too large loses its middle, and a notice
in the log says so.

The middle is replaced by a hole (fallocate(2), FALLOC_FL_PUNCH_HOLE: ext4, XFS, Btrfs, tmpfs), so
that byte offsets in the log stay valid for the server and for readers. On a file system without
holes, the log stays complete until the trial exceeds its disk budget and is ended.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from fleet_protos.regular_file import open_regular_file

log = logging.getLogger(__name__)

LOG_BYTES = 256 << 20  # of one log
ATTEMPT_BYTES = 16 << 30  # of everything that a server writes into its attempt's folder
_HEAD_BYTES = 16 << 20  # always kept: it holds the log of the launch
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_CHUNK_BYTES = 1 << 20
MOST_FILES = 100_000
_MOST_NCCL_LOGS = 256
_CHECK_EVERY_S, _CHECKS_PER_FULL_CHECK = 1.0, 5


async def enforce_limits(
    log_path: Path,
    budget_bytes: int = ATTEMPT_BYTES,
    check_every_s: float = _CHECK_EVERY_S,
    most_files: int = MOST_FILES,
) -> str:
    """Trim a server's logs regularly. Run until the files in the folder of `log_path` exceed the
    budget, or until cancelled.

    Return a message that says how much disk space the files take.
    """
    folder, checks = log_path.parent, 0
    while True:
        await asyncio.sleep(check_every_s)
        await asyncio.to_thread(trim_log, log_path)
        checks += 1
        if checks % _CHECKS_PER_FULL_CHECK == 0:
            for path in await asyncio.to_thread(
                lambda: sorted(folder.glob("nccl-*.log"))[:_MOST_NCCL_LOGS]
            ):
                await asyncio.to_thread(trim_log, path)
            if excess := await asyncio.to_thread(
                _describe_excess, folder, budget_bytes, most_files
            ):
                return excess


def trim_log(path: Path, limit: int = LOG_BYTES) -> int:
    """Drop the middle of a log that takes more than `limit` bytes of disk space.

    Return how many bytes were dropped. A symbolic link is not followed.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        status = os.fstat(descriptor)
        if status.st_blocks * 512 <= limit:
            return 0
        block = status.st_blksize or 4096
        head = min(_HEAD_BYTES, limit // 4)
        first, end = _round_up(head, block), (status.st_size - limit // 2) // block * block
        if end <= first or not _punch_hole(descriptor, first, end - first):
            return 0
        os.pwrite(descriptor, _gap_notice(end - first, limit), first)
        return end - first
    except OSError as error:
        log.warning("%s cannot be trimmed: %s", path, error.strerror)
        return 0
    finally:
        os.close(descriptor)


def read_data_chunks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file without its holes, in constant memory. Raises OSError."""
    with open_regular_file(path).detach() as file:
        at = 0
        while (at := next_data_offset(file.fileno(), at)) >= 0:
            end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
            os.lseek(file.fileno(), at, os.SEEK_SET)
            while at < end and (piece := file.read(min(_CHUNK_BYTES, end - at))):
                at += len(piece)
                yield piece


def next_data_offset(descriptor: int, at: int) -> int:
    """Return the offset of the first data at or after the offset `at`. Return -1 if only a hole
    follows.
    """
    try:
        return os.lseek(descriptor, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return -1
        raise


def _describe_excess(folder: Path, budget_bytes: int, most_files: int) -> str:
    """Return which limit the files below a folder exceed. Empty if they exceed none."""
    files = list(islice(folder.rglob("*"), most_files + 1))
    if len(files) > most_files:
        return f"the trial has more than {most_files} files in {folder}, which is the limit"
    used = sum(map(_disk_bytes, files))
    if used > budget_bytes:
        used_mib, budget_mib = used >> 20, budget_bytes >> 20
        return (
            f"the files of the trial in {folder} take {used_mib} MiB of disk space, more than the "
            f"limit of {budget_mib} MiB"
        )
    return ""


def used_bytes(folder: Path) -> int:
    """Return the disk space in bytes that the files below a folder take."""
    return sum(map(_disk_bytes, folder.rglob("*")))


def _disk_bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _round_up(number: int, block: int) -> int:
    return -(-number // block) * block


def _gap_notice(dropped: int, limit: int) -> bytes:
    return (
        f"\n[benchfleet: {dropped} bytes are left out here: a log is kept to {limit} bytes]\n"
    ).encode()


def _punch_hole(descriptor: int, offset: int, length: int) -> bool:
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    if call(descriptor, _PUNCH_HOLE | _KEEP_SIZE, offset, length) == 0:
        return True
    log.warning("the file system cannot punch a hole in a log: %s", os.strerror(ctypes.get_errno()))
    return False
