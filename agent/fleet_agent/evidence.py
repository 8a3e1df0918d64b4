"""Owns the files of a trial: server log, metrics, raw runs, with their digests. Names never leave the artifact folder."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import logging
import re
import urllib.request
from pathlib import Path

from fleet_agent.secrets import Secrets
from fleet_protos.errors import ConfigError
from fleet_protos.trial import Artifact

_log = logging.getLogger(__name__)
_TAIL_BYTES = 4096
_NO_SECRETS = Secrets()
_SCRAPE_LIMIT_BYTES = 4 << 20
_SCRAPE_TIMEOUT_S = 5.0


def safe(name: str) -> str:
    """A workload's name as a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)


def tail(path: Path, limit: int = _TAIL_BYTES) -> str:
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


def last_line(path: Path) -> str:
    """The last line of a file that is not blank, at most 400 characters; empty when there is none."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", tail(path)) if line.strip()]
    return lines[-1][:400] if lines else ""


def artifact(path: Path, root: Path, sha256: str = "") -> Artifact:
    """The artifact of a file below `root`; its digest is computed unless given."""
    if not sha256:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return Artifact(path.relative_to(root).as_posix(), sha256, path.stat().st_size)


def gather(folder: Path, root: Path, secrets: Secrets = _NO_SECRETS) -> tuple[Artifact, ...]:
    """The server's own files, masked. Raw runs are named by their RunFinished and not repeated here. The log is frozen as a copy."""
    found = []
    for log, frozen in ((folder / "server.log", folder / "server-log.txt"), (folder / "witness.log", folder / "witness-log.txt")):
        if log.is_file() and _kept(frozen, log.read_bytes()):  # a copy: the server may still write to its log while it is being fetched
            secrets.mask_file(frozen)
            found.append(artifact(frozen, root))
    for kept in (folder / "metrics.txt", *sorted(folder.glob("nccl-*.log"))):  # NCCL's own words, of the measured launch and of the witness
        if kept.is_file():
            secrets.mask_file(kept)
            found.append(artifact(kept, root))
    return tuple(found)


def _kept(path: Path, content: bytes) -> bool:
    """Write a file whole or not at all: what was measured counts without it. False, and told in the agent's log, when the disk is full."""
    try:
        path.write_bytes(content)
    except OSError as error:
        _log.warning("%s is not kept: %s", path, error.strerror)
        path.unlink(missing_ok=True)
        return False
    return True


async def scrape(url: str, target: Path) -> None:
    """Keep the server's /metrics as they are now; a server that does not answer leaves no file."""

    def fetch() -> None:
        with urllib.request.urlopen(f"{url}/metrics", timeout=_SCRAPE_TIMEOUT_S) as answer:
            _kept(target, answer.read(_SCRAPE_LIMIT_BYTES))

    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):  # URLError is an OSError; the last: no HTTP, cut off
        await asyncio.to_thread(fetch)


def resolve(root: Path, name: str) -> Path:
    """The file of an artifact name. Raises ConfigError for a name that leads out of `root` or to nothing."""
    path = (root / name).resolve()
    if not path.is_relative_to(root.resolve()) or not path.is_file() or path.suffix == ".env":  # a container's variables are not told
        raise ConfigError(f"no artifact {name!r}", "names are TRIAL/ATTEMPT/FILE as told by events")
    return path
