"""Watches the processes of one server, and reports the end of each process that
the server needs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from fleet_agent.host.processes import ProcessStat, RecordedSession, members_of, read_stat
from fleet_agent.server.supervisor import wait_gone

_PROC = Path("/proc")
_SCAN_AGAIN_S = 1.0  # for processes that are started during a launch
_SPAWNED_S = 10.0  # a spawned child without a title that ran for so long is not a short helper
# setproctitle(f"sglang::scheduler{prefix}") and its kin, sglang 0.4.1 - 0.5.23
_TITLE = re.compile(r"^sglang::(\w+?)((?:_(?:DP|PP|TP|EP|CP|MOE_DP|MOE_EP)\d+)*)$", re.I)
_SGLANG_TITLE = "sglang::"
_SPAWNED = re.compile(r"from multiprocessing\.spawn import spawn_main")
_LAUNCHER = re.compile(
    r"\bsglang\.launch_server\b|\bsglang (?:serve|launch)\b|/sglang\b.*\bserve\b"
)


@dataclass(frozen=True, slots=True)
class WatchedProcess:
    """A process of a server as it was last seen.

    `rank` is written as in SGLang's log (`DP0 TP1`). It is empty if the process has no rank. The
    server cannot run without a vital process.
    """

    process: ProcessStat
    title: str
    rank: str = ""
    is_vital: bool = False

    def __str__(self) -> str:
        return f"{self.title} (pid {self.process.pid})"


ReportProcessEnd = Callable[[WatchedProcess], Awaitable[None]]


class ProcessWatch:
    """Waits for the end of each process of one server, except the launcher."""

    def __init__(self, session: RecordedSession) -> None:
        self._session = session
        self._known: dict[int, WatchedProcess] = {}
        self._since_s: dict[int, float] = {}
        self._scanning_done = asyncio.Event()

    def stop_scanning(self) -> None:
        """Make `watch` scan for new processes once more and then no longer. Call this when the
        server is ready, because scans would disturb the measurement.
        """
        self._scanning_done.set()

    async def watch(self, report: ReportProcessEnd) -> None:
        """Report each vital process that ends. Return when all known processes have ended."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                was_complete = self._scanning_done.is_set()
                await self._scan(tasks, report)
                if was_complete:
                    return
                try:
                    async with asyncio.timeout(_SCAN_AGAIN_S):
                        await self._scanning_done.wait()
                except TimeoutError:
                    continue

    async def _scan(self, tasks: asyncio.TaskGroup, report: ReportProcessEnd) -> None:
        now_s = asyncio.get_running_loop().time()
        for member in await asyncio.to_thread(scan_server_processes, self._session):
            pid = member.process.pid
            known = self._known.get(pid)
            self._known[pid] = member
            if known is None or known.process.start_ticks != member.process.start_ticks:
                self._since_s[pid] = now_s
                tasks.create_task(self._wait_end(member.process, report))

    async def _wait_end(self, process: ProcessStat, report: ReportProcessEnd) -> None:
        await wait_gone(process)
        member = _with_final_name(self._known[process.pid])
        lived_s = asyncio.get_running_loop().time() - self._since_s[process.pid]
        if member.is_vital and (_SGLANG_TITLE in member.title or lived_s >= _SPAWNED_S):
            await report(member)


def scan_server_processes(session: RecordedSession) -> list[WatchedProcess]:
    """Return the living processes of the server, except its launcher and its subreaper.

    The processes are classified by their command lines. This reads all of /proc.
    """
    found = members_of(session)
    lines = {process.pid: _command_line(process.pid) for process in found}
    launchers = {pid for pid, line in lines.items() if _LAUNCHER.search(line)} | {session.pid}
    return [
        _classify(process, lines[process.pid], launchers)
        for process in found
        if process.pid not in (session.pid, session.session_id)
    ]


def _classify(process: ProcessStat, line: str, launchers: Iterable[int]) -> WatchedProcess:
    """Classify a process. It is vital if it has a title that SGLang sets, or if a launcher spawned
    it.

    Compilers, probes and their children are not vital.
    """
    title = line.partition(" ")[0]
    titled = _TITLE.match(title)
    if titled:
        return WatchedProcess(process, title, titled[2].strip("_").replace("_", " "), is_vital=True)
    spawned = bool(_SPAWNED.search(line)) and process.parent in launchers
    return WatchedProcess(process, process.name, is_vital=spawned)


def _with_final_name(member: WatchedProcess) -> WatchedProcess:
    """Return the process with the title that its zombie still has. The title may have been set
    after the last scan.
    """
    now = read_stat(member.process.pid)
    if (
        _SGLANG_TITLE in member.title
        or now is None
        or now.start_ticks != member.process.start_ticks
        or _SGLANG_TITLE not in now.name
    ):
        return member
    return replace(member, title=now.name, is_vital=True)


def _command_line(pid: int) -> str:
    """Return the command line of a process, or the title that the process has set in its place."""
    try:
        return (
            (_PROC / str(pid) / "cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return ""
