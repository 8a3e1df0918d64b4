"""Owns where NCCL tells what it did on this host: log lines, configuration files, the loaded library. Reads them; judges nothing.

Sources: NCCL's environment documentation (NCCL_CONF_FILE from 2.23, else ~/.nccl.conf, then /etc/nccl.conf), proc_pid_maps(5).
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fleet_agent.processes import members_of, session_with_token

LOGS = "nccl-*.log"  # beside the server's log: NCCL_DEBUG_FILE of a launch on two or more GPUs
WITNESS_LOGS = "nccl-witness-*.log"
SYSTEM_CONFIGURATION = "/etc/nccl.conf"
_MENTIONED = re.compile(r"\b(?:NCCL|RCCL)\b|\bnccl")
_LIBRARY = re.compile(r"(/\S*/lib(?:nccl|rccl)\.so[\w.]*)")
_LINE_LIMIT = 4096
_CONFIGURATION_LIMIT_BYTES = 1 << 16
_INSPECTOR_ON, _INSPECTOR_FOLDER = "NCCL_INSPECTOR_ENABLE", "NCCL_INSPECTOR_DUMP_DIR"


def lines(log: Path, *, witness: bool = False) -> Iterator[str]:
    """Every line of the launch that may be NCCL's: of its own files, else of the server's log, where a job keeps them there."""
    for path in (*logs(log, witness=witness), log):
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                yield from (line.rstrip("\n") for line in file if len(line) < _LINE_LIMIT and _MENTIONED.search(line))
        except OSError:
            continue


def logs(log: Path, *, witness: bool = False) -> tuple[Path, ...]:
    """NCCL's own files of the launch whose log this is."""
    of_witness = set(log.parent.glob(WITNESS_LOGS))
    return tuple(sorted(of_witness if witness else set(log.parent.glob(LOGS)) - of_witness))


def configurations(env: Mapping[str, str], home: str) -> dict[str, dict[str, str]]:
    """The variables of each NCCL configuration file that the server finds, the stronger file first. An unreadable one has none."""
    own = env.get("NCCL_CONF_FILE") or f"{home}/.nccl.conf"
    found = {path: dict(_variables(path)) for path in (own, SYSTEM_CONFIGURATION)}
    return {path: variables for path, variables in found.items() if variables}


def _variables(path: str) -> Iterator[tuple[str, str]]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            content = file.read(_CONFIGURATION_LIMIT_BYTES)
    except OSError:
        return
    for line in content.splitlines():
        name, mark, value = line.partition("=")
        if mark and not line.lstrip().startswith("#") and name.strip():
            yield name.strip(), value.strip()


def loaded_libraries(token: str) -> tuple[str, ...]:
    """The NCCL libraries that processes of the launch with this token have mapped; none that cannot be seen."""
    session = session_with_token(token)
    members = members_of(session) if session else ()
    return tuple(sorted({library for process in members for library in mapped(_maps(process.pid))}))


def mapped(maps: Iterable[str]) -> set[str]:
    """The NCCL libraries in lines of /proc/PID/maps."""
    return {found[1] for line in maps if (found := _LIBRARY.search(line))}


def _maps(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def inspector_dumps(env: Mapping[str, str]) -> Iterator[str]:
    """The texts that NCCL Inspector wrote, where the job has it enabled and names its folder."""
    folder = env.get(_INSPECTOR_FOLDER, "")
    if env.get(_INSPECTOR_ON, "0") in ("", "0") or not folder:
        return
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "**", "*"), recursive=True)):
        if os.path.isfile(path):
            try:
                yield Path(path).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
