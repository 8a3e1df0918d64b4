"""Owns the leak check that ends each test: no process, listening port or open file may outlive it.
Tests nothing itself.
"""

from __future__ import annotations

import gc
import os
import signal
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

MARK = "BENCHFLEET_TEST_SESSION"
GRACE_S = 5.0
POLL_S = 0.05

# A shell starts what runs in the background with Ctrl-C ignored, and the programs under test would
# inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _chain(process: psutil.Process) -> list[int]:
    """The process ids above `process`, nearest first; short when one of them has just ended."""
    try:
        return [parent.pid for parent in process.parents()]
    except psutil.Error:
        return []


@dataclass(frozen=True, slots=True)
class LeakCheck:
    """What this test session had open at one moment, to compare with what it has open later."""

    session: str
    folder: str
    earlier: frozenset[int]
    ports: frozenset[str]
    files: frozenset[str]

    @classmethod
    def now(cls, session: str, folder: str) -> LeakCheck:
        """The state at this moment; processes by id, ports and files of this process alone."""
        return cls(session, folder, frozenset(psutil.pids()), _ports(), _files())

    def processes_left(self) -> list[psutil.Process]:
        """Processes that came later, belong to this session, and were not started by one that was
        there before.
        """
        wider = self.earlier - {os.getpid(), *_chain(psutil.Process())}
        left = []
        for pid in set(psutil.pids()) - self.earlier:
            try:
                process = psutil.Process(pid)
                chain = _chain(process)
                if self._is_ours(process, chain) and wider.isdisjoint(chain):
                    left.append(process)
            except psutil.Error:
                continue
        return left

    def _is_ours(self, process: psutil.Process, chain: list[int]) -> bool:
        if os.getpid() in chain:
            return not any("multiprocessing.resource_tracker" in word for word in process.cmdline())
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if process.environ().get(MARK) == self.session:
            return True
        return any(self.folder in text for text in (*process.cmdline(), process.cwd()))

    def leaks(self) -> list[str]:
        """One line for each thing still open after a short grace; processes found are ended."""
        deadline = time.monotonic() + GRACE_S
        while (left := self._left()) and time.monotonic() < deadline:
            gc.collect()
            time.sleep(POLL_S)
        for process in self.processes_left():
            process.kill()
        return left

    def _left(self) -> list[str]:
        processes = [
            f"process {process.pid}: {_command(process)}" for process in self.processes_left()
        ]
        ports = [f"listening on {port}" for port in _ports() - self.ports]
        return processes + ports + [f"open file {name}" for name in _files() - self.files]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "(just ended)"


def _ports() -> frozenset[str]:
    listening = (
        link
        for link in psutil.Process().net_connections(kind="inet")
        if link.status == psutil.CONN_LISTEN
    )
    return frozenset(f"{link.laddr.ip}:{link.laddr.port}" for link in listening)


def _files() -> frozenset[str]:
    return frozenset(file.path for file in psutil.Process().open_files())


@pytest.fixture(scope="session")
def session_mark() -> str:
    """The mark that every process started by this session inherits in its environment."""
    return os.environ.setdefault(MARK, uuid.uuid4().hex)


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_the_session(
    session_mark: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    before = LeakCheck.now(session_mark, str(tmp_path_factory.getbasetemp()))
    yield
    leaks = before.leaks()
    assert not leaks, "left over by the session: " + "; ".join(leaks)


@pytest.fixture(autouse=True)
def nothing_outlives_the_test(
    session_mark: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    before = LeakCheck.now(session_mark, str(tmp_path_factory.getbasetemp()))
    yield
    leaks = before.leaks()
    assert not leaks, "left over by this test: " + "; ".join(leaks)
