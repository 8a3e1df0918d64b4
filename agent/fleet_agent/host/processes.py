"""Finds the processes of a launched server in /proc, never by their names.

A session is a Linux session here, see setsid(2). A process belongs to a server if one of these
holds:
- It has a mark: the launch token is in its environment, or it writes its output to the server's log
  (scheduler children overwrite their environment).
- It is in the recorded session, and this session is still the server's: the leader has the recorded
  start time, or the leader is gone and another process in the session has a mark.
- It descends from a process of the server, or is in a session that a process of the server leads.
Start times are compared, because the kernel may have reused a process id.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TOKEN_VARIABLE = "BENCHFLEET_LAUNCH"

_PROC = Path("/proc")
_DEAD_STATES = frozenset("ZXx")  # a zombie holds no resources, it only waits for its parent


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """Holds what is recorded of a launched server, so that its processes can be found again.

    An empty text means that the value is not known. `start_ticks` is 0 if the leader of the session
    ended before its start time could be read.
    """

    pid: int
    session_id: int
    start_ticks: int  # field 22 of /proc/PID/stat
    token: str = ""
    log_path: str = ""
    boot_id: str = ""  # process ids are valid only within one boot


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The state of one process at one moment. The fields are those of proc_pid_stat(5)."""

    pid: int
    name: str
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int

    @property
    def is_alive(self) -> bool:
        """True if the process is neither a zombie nor dead."""
        return self.state not in _DEAD_STATES

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name}) in state {self.state}, session {self.session}"


def boot_id() -> str:
    """Return the kernel's boot id and the start time of process 1, as `ID/TICKS`.

    When a container starts again, its process ids are as new as those after a boot of the machine,
    and its process 1 has another start time. The result is empty if the boot id cannot be read,
    and has no start time if that cannot be read.
    """
    try:
        kernel = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    first = read_stat(1)
    return f"{kernel}/{first.start_ticks}" if first else kernel


def is_of_another_boot(recorded: str) -> bool:
    """Return whether process ids that were recorded with this boot id are meaningless now.

    Records of older agents have no start time of process 1; only the kernel's id is compared then.
    """
    now = boot_id()
    if "/" not in recorded or "/" not in now:
        recorded, now = recorded.partition("/")[0], now.partition("/")[0]
    return bool(recorded and now) and recorded != now


def oom_kills() -> int:
    """Return how many processes the kernel's OOM killer has ended since boot (Linux 4.13 or newer).

    Return 0 if that cannot be read.
    """
    try:
        lines = (_PROC / "vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def read_stat(pid: int) -> ProcessStat | None:
    """Return the process with this id, even if it is a zombie. Return None if there is none."""
    try:
        return parse_stat((_PROC / str(pid) / "stat").read_bytes())
    except OSError:
        return None


def parse_stat(line: bytes) -> ProcessStat:
    """Parse the content of /proc/PID/stat.

    The name of the process is in parentheses and may itself contain blanks and parentheses.
    """
    head, _, tail = line.rpartition(b")")
    pid, _, name = head.partition(b"(")
    fields = tail.split()
    parent, group, session = (int(text) for text in fields[1:4])
    return ProcessStat(
        int(pid),
        name.decode(errors="replace"),
        fields[0].decode(),
        parent,
        group,
        session,
        int(fields[19]),
    )


def all_processes() -> dict[int, ProcessStat]:
    """Return every visible process by id, including zombies."""
    found = (read_stat(int(name)) for name in os.listdir(_PROC) if name.isdigit())
    return {process.pid: process for process in found if process}


def processes_of_session(session_id: int) -> tuple[ProcessStat, ...]:
    """Return all living processes in the Linux session with this id."""
    return tuple(
        process
        for process in all_processes().values()
        if process.session == session_id and process.is_alive
    )


def members_of(
    session: RecordedSession, known: Iterable[ProcessStat] = ()
) -> tuple[ProcessStat, ...]:
    """Return the living processes of the recorded server, by the rules at the top of this file.

    `known` are processes that were recognised as the server's before.
    """
    if is_of_another_boot(session.boot_id):
        return ()
    seen = all_processes()
    seen.pop(os.getpid(), None)
    log = os.path.realpath(session.log_path) if session.log_path else ""
    later = (process for process in seen.values() if process.start_ticks >= session.start_ticks)
    marked = {process.pid for process in later if _is_marked(process, session.token, log)}
    marked |= {
        process.pid
        for process in known
        if process.pid in seen and seen[process.pid].start_ticks == process.start_ticks
    }
    return tuple(
        seen[pid] for pid in sorted(_server_pids(seen, marked, session)) if seen[pid].is_alive
    )


def unproven_members(
    session: RecordedSession, known: Iterable[ProcessStat] = ()
) -> tuple[ProcessStat, ...]:
    """Return the living processes that may be the server's although nothing proves it.

    They are in the recorded session and run as the agent's user, but the leader of the session is
    gone and they have no mark.
    """
    inside = processes_of_session(session.session_id)
    if not inside or read_stat(session.session_id) or is_of_another_boot(session.boot_id):
        return ()
    proven = {process.pid for process in members_of(session, known)}
    later = (process for process in inside if process.start_ticks >= session.start_ticks)
    return tuple(process for process in later if process.pid not in proven and _is_own(process.pid))


def find_session_by_token(token: str) -> RecordedSession | None:
    """Find the server that has this launch token, by its oldest process. Return None if no process
    has the token.

    The session of that process is the server's only if the leader of the session has the token too
    or is dead. Otherwise the process may have been started in the session of another program.
    """
    seen = all_processes()
    seen.pop(os.getpid(), None)
    bearers = {process.pid for process in seen.values() if _is_marked(process, token, "")}
    if not bearers:
        return None
    oldest = min(
        (seen[pid] for pid in bearers),
        key=lambda process: (process.session != process.pid, process.start_ticks, process.pid),
    )
    leader = seen.get(oldest.session)
    if leader is None:
        return RecordedSession(oldest.session, oldest.session, 0, token, boot_id=boot_id())
    root = leader if leader.pid in bearers or not leader.is_alive else oldest
    return RecordedSession(root.pid, root.pid, root.start_ticks, token, boot_id=boot_id())


def _server_pids(
    seen: Mapping[int, ProcessStat], marked: Iterable[int], session: RecordedSession
) -> set[int]:
    ours = {pid for pid in marked if pid in seen}
    leader = seen.get(session.session_id)
    same_leader = (
        leader is not None and session.start_ticks > 0 and leader.start_ticks == session.start_ticks
    )
    marks_inside = leader is None and any(seen[pid].session == session.session_id for pid in ours)
    if (same_leader or marks_inside) and session.session_id != os.getsid(0):
        ours |= {pid for pid, process in seen.items() if process.session == session.session_id}
    while new := set(_descendants(seen, ours)) - ours:
        ours |= new
    return ours


def _descendants(seen: Mapping[int, ProcessStat], ours: set[int]) -> Iterator[int]:
    """Yield the children of the processes `ours`, and the processes in sessions
    that `ours` lead.
    """
    for pid, process in seen.items():
        leader = seen.get(process.session)
        if process.parent in ours or (
            leader is not None and leader.pid in ours and leader.session == leader.pid
        ):
            yield pid


def _is_marked(process: ProcessStat, token: str, log: str) -> bool:
    if not process.is_alive or not _is_own(process.pid):
        return False
    return (bool(token) and _has_token(process.pid, token)) or (
        bool(log) and log in _output_files(process.pid)
    )


def _is_own(pid: int) -> bool:
    try:
        return (_PROC / str(pid)).stat().st_uid == os.geteuid()
    except OSError:
        return False


def _has_token(pid: int, token: str) -> bool:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return f"{TOKEN_VARIABLE}={token}".encode() in environment.split(b"\0")


def _output_files(pid: int) -> Iterator[str]:
    for descriptor in ("1", "2"):
        try:
            yield os.readlink(_PROC / str(pid) / "fd" / descriptor)
        except OSError:
            continue
