"""Reads what NCCL leaves on this host: log lines, configuration files, the mapped library and the
files of NCCL Inspector.

Source for the mapped libraries: proc_pid_maps(5).
"""

from __future__ import annotations

import glob
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from fleet_agent.host.processes import find_session_by_token, members_of
from fleet_knowledge.nccl.nccl_conf import SYSTEM_FILE, NcclConfFile, user_file
from fleet_knowledge.release import Release
from fleet_protos.regular_file import open_regular_file

# NCCL_DEBUG_FILE of a launch on two or more GPUs, in the folder of the server's log
LOGS = "nccl-*.log"
WITNESS_LOGS = "nccl-witness-*.log"
_MENTIONED = re.compile(r"\b(?:NCCL|RCCL)\b|\bnccl")
_LIBRARY = re.compile(r"(/\S*/lib(?:nccl|rccl)\.so[\w.]*)")
_LINE_LIMIT = 4096
_CONFIGURATION_LIMIT = 1 << 16
_INSPECTOR_ON, _INSPECTOR_FOLDER = "NCCL_INSPECTOR_ENABLE", "NCCL_INSPECTOR_DUMP_DIR"


def read_nccl_lines(log: Path, *, witness: bool = False) -> Iterator[str]:
    """Yield every line of a launch that NCCL may have written: first those of NCCL's own files,
    then those of the server's log.

    Lines of 4096 characters or more are skipped.
    """
    for path in (*nccl_log_files(log, witness=witness), log):
        try:
            with io.TextIOWrapper(open_regular_file(path), "utf-8", "replace") as file:
                yield from (
                    line.rstrip("\n")
                    for line in file
                    if len(line) < _LINE_LIMIT and _MENTIONED.search(line)
                )
        except OSError:
            continue


def nccl_log_files(log: Path, *, witness: bool = False) -> tuple[Path, ...]:
    """Return the log files that NCCL wrote in the launch whose server log is `log`."""
    of_witness = set(log.parent.glob(WITNESS_LOGS))
    return tuple(sorted(of_witness if witness else set(log.parent.glob(LOGS)) - of_witness))


def read_nccl_configurations(
    env: Mapping[str, str], release: Release | None, home: str
) -> tuple[NcclConfFile, ...]:
    """Return NCCL's configuration files that the server finds: the user's file before the system's.

    A file that cannot be read counts as missing.
    """
    found = ((path, _text(path)) for path in (user_file(env, release, home), SYSTEM_FILE))
    return tuple(NcclConfFile(path, text) for path, text in found if text)


def _text(path: str) -> str:
    try:
        with open_regular_file(Path(path)) as file:
            return file.read(_CONFIGURATION_LIMIT).decode(errors="replace")
    except OSError:
        return ""


def find_loaded_libraries(token: str) -> tuple[str, ...]:
    """Return the NCCL libraries that the processes of a launch have mapped. `token` identifies the
    launch.

    The result is empty if the processes cannot be inspected.
    """
    session = find_session_by_token(token)
    members = members_of(session) if session else ()
    return tuple(
        sorted(
            {
                library
                for process in members
                for library in find_mapped_libraries(_maps(process.pid))
            }
        )
    )


def find_mapped_libraries(maps: Iterable[str]) -> set[str]:
    """Return the NCCL libraries that the lines of /proc/PID/maps name."""
    return {found[1] for line in maps if (found := _LIBRARY.search(line))}


def _maps(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def read_inspector_dumps(env: Mapping[str, str], folder: Path) -> Iterator[str]:
    """Yield the content of each file that NCCL Inspector wrote. Yield nothing if the job does not
    enable it.

    The files are in the folder that the job names, else in a subfolder of `folder`, the server's
    own.
    """
    if env.get(_INSPECTOR_ON, "0") in ("", "0"):
        return
    named = env.get(_INSPECTOR_FOLDER)
    pattern = (
        os.path.join(glob.escape(named), "**", "*")
        if named
        else os.path.join(glob.escape(str(folder)), "*", "nccl-inspector-*", "*")
    )
    for path in sorted(glob.glob(pattern, recursive=True)):
        if os.path.isfile(path):
            try:
                yield Path(path).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
