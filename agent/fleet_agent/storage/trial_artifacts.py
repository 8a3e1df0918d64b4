"""Owns the files of a trial: server log, metrics, raw runs, with their digests. Names never leave
the artifact folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from fleet_agent.load.client.http_fetch import fetch
from fleet_agent.storage.log_limits import read_data_chunks
from fleet_agent.storage.secrets import Secrets
from fleet_protos.errors import ConfigError
from fleet_protos.trial_types import Artifact

_log = logging.getLogger(__name__)
_TAIL_BYTES = 4096
_NO_SECRETS = Secrets()
_SCRAPE_LIMIT_BYTES = 4 << 20
_SCRAPE_TIMEOUT_S = 5.0
_MOST_NCCL_LOGS = 256


def safe_file_name(name: str) -> str:
    """A workload's name as a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)


def read_tail(path: Path, limit: int = _TAIL_BYTES) -> str:
    """The last whole lines of a file, at most `limit` bytes; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            size = file.tell()
            file.seek(max(0, size - limit))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return text if size <= limit else text.partition("\n")[2]


def read_last_line(path: Path) -> str:
    """The last line of a file that is not blank, at most 400 characters; empty when there is none."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", read_tail(path)) if line.strip()]
    return lines[-1][:400] if lines else ""


def make_artifact(path: Path, root: Path, sha256: str = "") -> Artifact:
    """The artifact of a file below `root`; its digest is computed unless given."""
    if not sha256:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return Artifact(path.relative_to(root).as_posix(), sha256, path.stat().st_size)


def collect_artifacts(
    folder: Path, root: Path, secrets: Secrets = _NO_SECRETS
) -> tuple[Artifact, ...]:
    """The server's own files, masked. Raw runs are named by their RunFinished and not repeated
    here. The log is frozen as a copy.
    """
    found = []
    for log, frozen in (
        (folder / "server.log", folder / "server-log.txt"),
        (folder / "witness.log", folder / "witness-log.txt"),
    ):
        if (
            _is_plain_file(log) and _copy_log(log, frozen) and secrets.mask_or_remove(frozen)
        ):  # a copy: the server may still write to its log
            found.append(make_artifact(frozen, root))
    nccl = sorted(folder.glob("nccl-*.log"))[
        :_MOST_NCCL_LOGS
    ]  # NCCL's own words, of the measured launch and of the witness
    for kept in (folder / "metrics.txt", *nccl):
        if _is_plain_file(kept) and secrets.mask_or_remove(kept):
            found.append(make_artifact(kept, root))
    return tuple(found)


def _is_plain_file(path: Path) -> bool:
    """A plain file: a link that the server made in its folder may lead anywhere."""
    return path.is_file() and not path.is_symlink()


def _copy_log(log: Path, frozen: Path) -> bool:
    return _write_file(
        frozen, (piece.replace(b"\0", b"") for piece in read_data_chunks(log))
    )  # the rest of a block that a hole begins in


def _write_file(path: Path, content: Iterable[bytes]) -> bool:
    """Write a file whole or not at all: what was measured counts without it. False, and told in the
    agent's log, when the disk is full.
    """
    try:
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.writelines(content)
    except OSError as error:
        _log.warning("%s is not kept: %s", path, error.strerror)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return False
    return True


async def save_metrics(url: str, target: Path) -> None:
    """Keep the server's /metrics as they are now; a server that does not answer leaves no file."""

    with contextlib.suppress(
        OSError, EOFError, ValueError
    ):  # the last two: no HTTP, cut off; a timeout is an OSError
        async with asyncio.timeout(_SCRAPE_TIMEOUT_S):
            status, content = await fetch(url, "/metrics")
        if status == 200:
            await asyncio.to_thread(_write_file, target, (content[:_SCRAPE_LIMIT_BYTES],))


def resolve_artifact(root: Path, name: str) -> Path:
    """The file of an artifact name. Raises ConfigError for a name that leads out of `root` or to
    nothing.
    """
    path = root
    with contextlib.suppress(
        OSError, ValueError, RuntimeError
    ):  # too long, a NUL, links in a circle
        path = (root / name).resolve(strict=True)
    if (
        not path.is_relative_to(root.resolve()) or not path.is_file() or path.suffix == ".env"
    ):  # a container's variables are not told
        raise ConfigError(
            f"no artifact {name[:300]!a}", "names are TRIAL/ATTEMPT/FILE as told by events"
        )
    return path
