"""Owns the guard over one launched server: how its launch comes on, when it stands still, and who
of it died. Ends nothing itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping

from fleet_agent.core.stall_detection import stall_message
from fleet_agent.engines.sglang.exit_causes import explain_runtime_exit, explain_silent_exit
from fleet_agent.host.processes import ProcessStat, members_of, oom_kills
from fleet_agent.server.log_follower import FailedWithoutExit, LaunchStall, LogFollower
from fleet_agent.server.process_watch import ProcessWatch, WatchedProcess
from fleet_agent.server.supervisor import ServerProcess
from fleet_agent.storage import trial_artifacts
from fleet_agent.storage.disk_space import describe_full_disk
from fleet_agent.storage.log_limits import enforce_limits
from fleet_knowledge.failure_classes import FAILURES, kind_of
from fleet_knowledge.server_log.diagnosis.launch_phases import STALL_LIMITS_S
from fleet_knowledge.server_log.diagnosis.log_diagnosis import Diagnosis
from fleet_protos import events as ev
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import EngineSpec

_LAST_OUTPUT_S = 0.3  # what a dying process and its launcher still write
_CONSEQUENCES = ("scheduler_crashed", "detokenizer_crashed", "host_oom_kill", "killed")
_DEATH_NOTICE = re.compile(r"exit code:? -9\b|SIGQUIT|sigquit")

_STALLED_HINT = (
    "Look at what its last lines say; a phase that is known to be slow here may be given longer by engine.phase_timeouts. Waiting for "
    "ready_timeout as well would not have helped."
)

_DISK_BUDGET_HINT = (
    "lower what the server dumps, traces or logs: its folder is for logs, not for results"
)

# What gloo, NCCL and torch's store say of a peer that is gone
_PEER_LOSS = re.compile(
    r"Connection (?:reset|closed)|[Rr]emote (?:worker|process)|Broken pipe|EOFError|ncclRemoteError|peer",
    re.I,
)

ReportEvent = Callable[[ev.Body], None]


class ServerMonitor:
    """Watches one server from its launch until it is dismissed."""

    def __init__(self, process: ServerProcess, spec: EngineSpec) -> None:
        self._process = process
        self._limits_s = {**STALL_LIMITS_S, **spec.phase_timeouts_s}
        self._follower = LogFollower(process.log)
        self._process_watch = ProcessWatch(process.session)
        self._following: asyncio.Task[None] | None = None
        self._dismissed = asyncio.Event()
        self._is_dead = False
        self._death_reported = asyncio.Event()
        self._kills_before = oom_kills()

    def processes(self) -> tuple[ProcessStat, ...]:
        """All living processes of the server; reads all of /proc."""
        return members_of(self._process.session)

    async def watch(self, report: ReportEvent) -> None:
        """Report progress, and the first death or standstill, until dismissed."""

        def report_unless_dismissed(body: ev.Body) -> None:
            if not self._dismissed.is_set():
                report(body)

        async with asyncio.TaskGroup() as tasks:
            self._following = tasks.create_task(self._follow(report_unless_dismissed))
            watching = [
                self._following,
                tasks.create_task(
                    self._process_watch.watch(
                        lambda member: self._report_death(
                            f"{member} ended", member, report_unless_dismissed
                        )
                    )
                ),
                tasks.create_task(self._watch_exit(report_unless_dismissed)),
                tasks.create_task(self._enforce_log_limits(report_unless_dismissed)),
            ]
            await self._dismissed.wait()
            for task in watching:
                task.cancel()

    async def finish_launch(self) -> Mapping[str, float]:
        """The launch is over: from now on only deaths are watched for. Seconds that each of its
        phases took.
        """
        self._process_watch.stop_scanning()
        await self._stop_following()
        return await asyncio.to_thread(self._follower.phases_s)

    async def wait_death_reported(self) -> None:
        """Returns when a death that has been noticed has been told too."""
        if self._is_dead or self._process.exit_code is not None:
            await self._death_reported.wait()

    def stop_reporting(self) -> None:
        """We end the server ourselves: nothing that happens to it is news."""
        self._dismissed.set()

    # Inside

    async def _stop_following(self) -> None:
        """Afterwards the follower may be asked: two threads never read at once."""
        self._follower.stop_following()
        if self._following is not None:
            await asyncio.wait({self._following})

    async def _follow(self, report: ReportEvent) -> None:
        stalled = await self._follower.follow(report, self._limits_s)
        if isinstance(stalled, FailedWithoutExit) and not self._is_dead:
            self._is_dead = True
            report(await asyncio.to_thread(self._explained_death, "the server does not exit", None))
            self._death_reported.set()
        elif isinstance(stalled, LaunchStall) and not self._is_dead:
            log = self._process.log
            message = stall_message(
                stalled.state, stalled.at_s, trial_artifacts.read_last_line(log)
            )
            failure_class = f"stalled_{stalled.state.phase}"
            report(
                ev.ServerFailed(
                    ErrorKind.SERVER_UNHEALTHY,
                    failure_class,
                    message,
                    log_tail=trial_artifacts.read_tail(log),
                    hint=_STALLED_HINT,
                )
            )

    async def _enforce_log_limits(self, report: ReportEvent) -> None:
        too_much = await enforce_limits(self._process.log)
        if not self._is_dead:
            self._is_dead = True
            report(
                ev.ServerFailed(
                    ErrorKind.CONFIG,
                    "disk_budget",
                    too_much,
                    log_tail=trial_artifacts.read_tail(self._process.log),
                    hint=_DISK_BUDGET_HINT,
                )
            )
            self._death_reported.set()

    async def _watch_exit(self, report: ReportEvent) -> None:
        exit_code = await self._process.wait()
        await self._report_death(f"server exited with {exit_code}", None, report)

    async def _report_death(
        self, observation: str, member: WatchedProcess | None, report: ReportEvent
    ) -> None:
        """Only the first death is told: the others follow from it."""
        if self._is_dead:
            return
        self._is_dead, size = True, self._follower.size()
        await self._stop_following()
        before = await asyncio.to_thread(self._diagnose, size)
        if not _names_cause(before, member):
            report(await asyncio.to_thread(self._unexplained_death, observation, member))
        else:
            await asyncio.sleep(
                _LAST_OUTPUT_S if member else 0
            )  # its launcher follows it, and tells its exit code
            report(await asyncio.to_thread(self._explained_death, observation, member))
        self._death_reported.set()

    def _diagnose(self, end: int | None = None) -> Diagnosis:
        return explain_runtime_exit(self._follower.diagnose(end), self._process.exit_code or 0)

    def _explained_death(self, observation: str, member: WatchedProcess | None) -> ev.ServerFailed:
        """The log told before the death what led to it: then which of the processes ended first
        says nothing.
        """
        diagnosis, exit_code = self._diagnose(), self._process.exit_code or 0
        if not diagnosis.failure_class:
            return self._unexplained_death(observation, member)
        if exit_code:
            observation = f"server exited with {exit_code}"
        message = f"{observation}: {diagnosis.cause_line}"
        log_tail = trial_artifacts.read_tail(self._process.log)
        return ev.ServerFailed(
            kind_of(diagnosis.failure_class),
            diagnosis.failure_class,
            message,
            exit_code,
            log_tail,
            diagnosis.cause_line,
            diagnosis.rank,
            diagnosis.hint,
        )

    def _unexplained_death(
        self, observation: str, member: WatchedProcess | None
    ) -> ev.ServerFailed:
        """What the others say of it afterwards only follows from it."""
        exit_code = self._process.exit_code or 0
        failure_class, cause = self._infer_cause(exit_code, member)
        failure, rank = FAILURES.get(failure_class), member.rank if member else ""
        hint, log_tail = (
            failure.hint if failure else "",
            trial_artifacts.read_tail(self._process.log),
        )
        return ev.ServerFailed(
            kind_of(failure_class),
            failure_class,
            f"{observation}: {cause}",
            exit_code,
            log_tail,
            rank=rank,
            hint=hint,
        )

    def _infer_cause(self, exit_code: int, member: WatchedProcess | None) -> tuple[str, str]:
        """(class, cause) where the log names none."""
        kills = oom_kills() - self._kills_before
        if kills > 0:
            return (
                "host_oom_kill",
                f"the kernel ended {kills} processes of this host for want of memory since the launch",
            )
        if full := describe_full_disk(self._process.log.parent):
            return "disk_full", f"{full}, so its log cannot tell why"
        if member is not None:
            return (
                "scheduler_died",
                "its log names no cause, so somebody or something outside ended it",
            )
        return explain_silent_exit(exit_code)


def _names_cause(diagnosis: Diagnosis, member: WatchedProcess | None) -> bool:
    """The log names a cause, and not merely the death itself or, by another rank, the loss of this
    one.

    SIGKILL from anyone looks as the kernel's does, which counts its own.
    """
    if not diagnosis.failure_class or (
        diagnosis.failure_class in _CONSEQUENCES and _DEATH_NOTICE.search(diagnosis.cause_line)
    ):
        return False
    is_loss = (
        member is not None
        and diagnosis.rank != member.rank
        and bool(_PEER_LOSS.search(diagnosis.cause_line))
    )
    return not is_loss
