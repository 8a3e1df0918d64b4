"""Watches one launched server: its launch progress, stalls, and the death of its processes."""

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

_LAST_OUTPUT_S = 0.3  # for the last output of a dying process and its launcher
_CONSEQUENCES = ("scheduler_crashed", "detokenizer_crashed", "host_oom_kill", "killed")
_DEATH_NOTICE = re.compile(r"exit code:? -9\b|SIGQUIT|sigquit")

_STALLED_HINT = (
    "Read the last lines of the log. If the phase is known to be slow on this host, give it more "
    "time with engine.phase_timeouts. A longer ready_timeout does not allow longer stalls."
)

_DISK_BUDGET_HINT = (
    "make the server dump, trace or log less: its folder is meant for logs, not for results"
)

# What gloo, NCCL and torch's store log about a peer that is gone
_PEER_LOSS = re.compile(
    r"Connection (?:reset|closed)|[Rr]emote (?:worker|process)|Broken pipe|EOFError"
    r"|ncclRemoteError|peer",
    re.I,
)

ReportEvent = Callable[[ev.Body], None]


class ServerMonitor:
    """Watches one server from its launch until `stop_reporting` is called."""

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
        """Return all living processes of the server. This reads all of /proc."""
        return members_of(self._process.session)

    async def watch(self, report: ReportEvent) -> None:
        """Report the launch's progress, and the first death or stall, until `stop_reporting` is
        called.
        """

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
        """Stop watching the launch. From now on, report only deaths.

        Return the seconds that each phase of the launch took.
        """
        self._process_watch.stop_scanning()
        await self._stop_following()
        return await asyncio.to_thread(self._follower.phases_s)

    async def wait_death_reported(self) -> None:
        """Wait until a death that was noticed has been reported. Return at once if none was
        noticed.
        """
        if self._is_dead or self._process.exit_code is not None:
            await self._death_reported.wait()

    def stop_reporting(self) -> None:
        """Report nothing from now on, because the agent itself ends the server."""
        self._dismissed.set()

    # Inside

    async def _stop_following(self) -> None:
        """Stop following the log, so that only one thread at a time reads it."""
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
        """Report the first death only, because later deaths are its consequences."""
        if self._is_dead:
            return
        self._is_dead, size = True, self._follower.size()
        await self._stop_following()
        before = await asyncio.to_thread(self._diagnose, size)
        if not _names_cause(before, member):
            report(await asyncio.to_thread(self._unexplained_death, observation, member))
        else:
            # the launcher ends after its process, and then its exit code is known
            await asyncio.sleep(_LAST_OUTPUT_S if member else 0)
            report(await asyncio.to_thread(self._explained_death, observation, member))
        self._death_reported.set()

    def _diagnose(self, end: int | None = None) -> Diagnosis:
        return explain_runtime_exit(self._follower.diagnose(end), self._process.exit_code or 0)

    def _explained_death(self, observation: str, member: WatchedProcess | None) -> ev.ServerFailed:
        """Return the failure event of a death that the log explains.

        It does not matter then which process ended first.
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
        """Return the failure event of a death that the log does not explain.

        What other processes log after the death is only a consequence.
        """
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
        """Return (failure class, cause) of a death that the log does not explain."""
        kills = oom_kills() - self._kills_before
        if kills > 0:
            return (
                "host_oom_kill",
                f"the kernel's OOM killer has ended {kills} processes on this host since the "
                "launch",
            )
        if full := describe_full_disk(self._process.log.parent):
            return "disk_full", f"{full}, so the log cannot show why"
        if member is not None:
            return (
                "scheduler_died",
                "the log names no cause, so something outside the server ended the process",
            )
        return explain_silent_exit(exit_code)


def _names_cause(diagnosis: Diagnosis, member: WatchedProcess | None) -> bool:
    """Return whether the log names the cause of a death.

    A line about the death itself does not name a cause. Neither does a line of another rank that
    has lost its connection to the dead process. A SIGKILL in the log does not show who sent it; the
    kernel counts those of its OOM killer.
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
