"""Collects the artifacts of a trial, with their digests: server logs, metrics, raw data of runs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path

from fleet_agent.core.engine import KEY_FILE
from fleet_agent.load.client.http_fetch import fetch
from fleet_agent.storage.log_limits import read_data_chunks
from fleet_agent.storage.secrets import Secrets
from fleet_protos.errors import ConfigError
from fleet_protos.regular_file import open_regular_file
from fleet_protos.trial_types import Artifact

_log = logging.getLogger(__name__)
_TAIL_BYTES = 4096
_NO_SECRETS = Secrets()
_SCRAPE_LIMIT_BYTES = 4 << 20
_SCRAPE_TIMEOUT_S = 5.0
_MOST_NCCL_LOGS = 256


def safe_file_name(name: str) -> str:
    """Return a workload's name with all characters replaced that do not fit into a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)


def read_tail(path: Path, limit: int = _TAIL_BYTES) -> str:
    """Return the last complete lines of a file, at most `limit` bytes. Empty if the file cannot be
    read.
    """
    try:
        with open_regular_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return text if size <= limit else text.partition("\n")[2]


def read_last_line(path: Path) -> str:
    """Return the last line of a file that is not blank, at most 400 characters. Empty if there is
    no such line.
    """
    lines = [line.strip() for line in re.split(r"[\r\n]+", read_tail(path)) if line.strip()]
    return lines[-1][:400] if lines else ""


def make_artifact(path: Path, root: Path, sha256: str = "") -> Artifact:
    """Return the artifact that describes a file below `root`. The digest is computed if it is not
    given.
    """
    if not sha256:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return Artifact(path.relative_to(root).as_posix(), sha256, path.stat().st_size)


def collect_artifacts(
    folder: Path, root: Path, secrets: Secrets = _NO_SECRETS
) -> tuple[Artifact, ...]:
    """Return the server's own files as artifacts, with secrets masked.

    Logs are copied first, because the server may still write to them. The raw data of runs is not
    included, because the RunFinished events name it.
    """
    found = []
    for log, frozen in (
        (folder / "server.log", folder / "server-log.txt"),
        (folder / "witness.log", folder / "witness-log.txt"),
    ):
        if _is_plain_file(log) and _copy_log(log, frozen) and secrets.mask_or_remove(frozen):
            found.append(make_artifact(frozen, root))
    # NCCL's own logs, of the measured launch and of the witness
    nccl = sorted(folder.glob("nccl-*.log"))[:_MOST_NCCL_LOGS]
    for kept in (folder / "metrics.txt", *nccl):
        if _is_plain_file(kept) and secrets.mask_or_remove(kept):
            found.append(make_artifact(kept, root))
    return tuple(found)


def _is_plain_file(path: Path) -> bool:
    """Return whether the path is a file and not a symbolic link, which the server could point to
    any file.
    """
    return path.is_file() and not path.is_symlink()


def _copy_log(log: Path, frozen: Path) -> bool:
    # NUL bytes are the rest of a block in which a hole begins
    return _write_file(frozen, (piece.replace(b"\0", b"") for piece in read_data_chunks(log)))


def _write_file(path: Path, content: Iterable[bytes]) -> bool:
    """Write a complete file. If that fails, remove the file, log a warning and return False.

    The trial's measurements count even without the file.
    """
    try:
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.writelines(content)
    except OSError as error:
        _log.warning("%s cannot be written and is left out: %s", path, error.strerror)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return False
    return True


async def save_metrics(url: str, target: Path, api_key: str = "") -> None:
    """Save the server's current /metrics as `target`. Write no file if the server
    does not answer.
    """

    # EOFError: the answer is cut off; ValueError: it is not HTTP; a timeout is an OSError
    with contextlib.suppress(OSError, EOFError, ValueError):
        async with asyncio.timeout(_SCRAPE_TIMEOUT_S):
            status, content = await fetch(url, "/metrics", api_key=api_key)
        if status == 200:
            await asyncio.to_thread(_write_file, target, (content[:_SCRAPE_LIMIT_BYTES],))


def _passes_secrets(path: Path) -> bool:
    return path.suffix == ".env" or path.name == KEY_FILE


def resolve_artifact(root: Path, name: str) -> Path:
    """Return the path of an artifact's file.

    Raises ConfigError if the name leads to a place outside `root` or to no file. Raises ConfigError
    for a file that passes secrets to a server.
    """
    path = root
    # a name that is too long, a NUL, a loop of links
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        path = (root / name).resolve(strict=True)
    if not path.is_relative_to(root.resolve()) or not path.is_file() or _passes_secrets(path):
        short = name[:300]
        raise ConfigError(
            f"there is no artifact {short!a}",
            "use a name TRIAL/ATTEMPT/FILE from the trial's events",
        )
    return path
