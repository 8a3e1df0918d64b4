"""Ends the containers of a launch. They are found by an id file or a label, never by name.

The supervisor has already ended all processes that the agent can see, also those in a container.
This module ends the containers that the runtime's daemon still keeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from fleet_agent.engines.sglang.launch.container_command import LABEL
from fleet_agent.engines.sglang.launch.container_runtimes import client_environment

_log = logging.getLogger(__name__)
_LIMIT_S = 60.0  # for one call; a daemon that is busy with a large container is slow


async def end_containers(folder: Path, token: str, grace_s: float) -> tuple[str, ...]:
    """End every container of the launches with this token and folder.

    `grace_s` is the time from SIGTERM to SIGKILL and is rounded to whole seconds. Return one line
    for each container that still exists. Does nothing if there is no container.
    """
    written = _written_ids(folder)
    left = [
        line
        for kind, ids in written.items()
        for line in await _end_containers(kind, ids, token, round(grace_s))
    ]
    _remove(folder, "container.*.env", *(() if left else ("*.cid",)))
    return tuple(left)


def _written_ids(folder: Path) -> dict[str, list[str]]:
    """Return the container ids in the id files, for each runtime (`docker`, `podman`).

    An id is empty if the container was never created.
    """
    ids: dict[str, list[str]] = {}
    for file in sorted(folder.glob("*.cid")):
        ids.setdefault(file.name.partition(".")[0], []).append(
            file.read_text(encoding="ascii", errors="replace").strip()
        )
    return ids


def _remove(folder: Path, *patterns: str) -> None:
    for file in (file for pattern in patterns for file in folder.glob(pattern)):
        file.unlink(missing_ok=True)


async def _end_containers(kind: str, written: Sequence[str], token: str, grace_s: int) -> list[str]:
    program = shutil.which(kind)
    if program is None:
        return [f"{kind} is no longer on this host, so a container may still run"]
    code, found_ids = await _own_containers(program, written, token)
    for found in found_ids if code == 0 else ():
        await _run_client(
            program, "stop", "--time", str(grace_s), found, limit_s=grace_s + _LIMIT_S
        )
        await _run_client(program, "rm", "--force", "--volumes", found)
    code, found_ids = (
        await _own_containers(program, written, token) if found_ids else (code, found_ids)
    )
    return [f"container {found[:12]} of {kind}" for found in found_ids] if code == 0 else found_ids


async def _own_containers(
    program: str, written: Sequence[str], token: str
) -> tuple[int, list[str]]:
    """Return (0, ids of the launch's existing containers). If the runtime's client fails, return
    (its exit code, [message]).
    """
    words = ("ps", "--all", "--quiet", "--no-trunc")
    code, seen = await _run_client(program, *words)
    if code == 0:
        code, labelled = await _run_client(program, *words, "--filter", f"label={LABEL}={token}")
        if code == 0:
            return 0, [
                found for found in seen.split() if found in written or found in labelled.split()
            ]
        seen = labelled
    reason = seen[-300:]
    return code, [f"{program} does not list its containers, so one may still run: {reason}"]


async def _run_client(program: str, *words: str, limit_s: float = _LIMIT_S) -> tuple[int, str]:
    """Run the runtime's client. Return (exit code, output). The exit code is 124
    after a timeout.
    """
    process = await asyncio.create_subprocess_exec(
        program,
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=client_environment(os.environ),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return 124, f"{program} {words[0]} took longer than {limit_s:.0f} s"
    text = output.decode(errors="replace").strip()
    if process.returncode:
        _log.warning("%s %s ended with %s: %s", program, words[0], process.returncode, text[-300:])
    return process.returncode or 0, text
