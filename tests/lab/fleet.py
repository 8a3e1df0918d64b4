"""Owns a real fleet on lab hosts: agents in them with certificates, a controller on this machine,
and what must hold after any fault.

Agents run from this checkout's environment, shared read-only into hosts (`with_venv=True`), so that
a test of faults needs no deploy. Decides nothing that the product decides: it starts programs,
reads their doors and counts.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc

from fleet_controller.core.controller_api import (
    HostStatus,
    JobChange,
    JobDetail,
    JobResults,
    StoredRun,
    TrialStatus,
    is_job_over,
)
from fleet_controller.pki.authority import Authority
from fleet_controller.pki.initialize import init_trust_folder
from fleet_protos.codec import from_proto
from fleet_protos.trial_types import Outcome, Phase
from fleet_protos.v1 import controller_pb2 as pb
from fleet_protos.v1 import controller_pb2_grpc
from fleet_transport.sockets import listen_address
from tests.lab.hosts import HostProcess, LabHost, Started, wait_until
from tests.lab.lab import Lab
from tests.lab.programs import LabTrouble

PORT = 7433
CONFIG = "/etc/benchfleet"
STATE = "/var/lib/benchfleet"
TOGETHER_S = 60.0
CALL_S = 30.0
PAUSE_S = 0.05
LOG_END = 6000  # characters
LARGEST_BYTES = 256 << 20


@dataclass(slots=True)
class LabAgent:
    """The agent of one host, started as a daemon from the shared environment; its state is on the
    host's disk.
    """

    host: LabHost
    settings: str = "simulated_gpus = 8\n"
    started: Started | None = None

    def install(self, authority: Authority) -> None:
        """Its certificate and agent.toml; again: a new certificate."""
        folder = self.host.path(CONFIG)
        folder.mkdir(exist_ok=True)
        issued = authority.issue_agent(self.host.name, [self.host.address])
        texts = {
            "ca.crt": authority.authorities_pem(),
            "agent.crt": issued.certificate_pem,
            "agent.key": issued.key_pem,
        }
        texts["revoked.json"] = authority.revoked_text().encode()
        texts["agent.toml"] = self._config().encode()
        for name, text in texts.items():
            (folder / name).write_bytes(text)
            (folder / name).chmod(0o600 if name.endswith(".key") else 0o644)

    def _config(self) -> str:
        files = {
            "authorities": "ca.crt",
            "certificate": "agent.crt",
            "key": "agent.key",
            "revoked": "revoked.json",
        }
        tls = "".join(f'{key} = "{CONFIG}/{name}"\n' for key, name in files.items())
        return f'host = "{self.host.name}"\nlisten = "0.0.0.0:{PORT}"\nstate = "{STATE}"\n{self.settings}[tls]\n{tls}'

    def start(self, env: Mapping[str, str] | None = None, wait: bool = True) -> None:
        """Start it; returns when it listens. Its log is /var/log/agent.log of the host, over all
        starts.
        """
        words = [sys.executable, "-m", "fleet_agent.main", "--config", f"{CONFIG}/agent.toml"]
        self.started = self.host.begin("agent", words, env=env)
        if wait:
            self.await_listening()

    def await_listening(self) -> None:
        """Return when it listens; LabTrouble with its log when it does not."""
        try:
            wait_until(
                lambda: self.host.listens(PORT) or not self.alive,
                TOGETHER_S,
                f"the agent of {self.host.name} listens",
            )
            wait_until(lambda: self.alive, 0, f"the agent of {self.host.name} lives")
        except LabTrouble as error:
            raise LabTrouble(f"{error}; its log: {self.log()}") from None

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.started is not None and self.started.alive()

    def kill(self) -> None:
        """SIGKILL, as a crash; what it started stays."""
        if self.started:
            self.started.kill(signal.SIGKILL)
            self.started.wait()

    def stop(self, timeout_s: float = 90.0) -> None:
        """SIGTERM, and wait for its end."""
        if self.started:
            self.started.kill(signal.SIGTERM)
            self.started.wait(timeout_s)

    def log(self) -> str:
        """What it said so far."""
        path = self.host.path("/var/log/agent.log")
        return path.read_text(errors="replace") if path.exists() else ""


@dataclass(slots=True)
class LabController:
    """`fleet-controller` on this machine; `folder` holds its state, its log and what it reads."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Its Unix socket."""
        return listen_address(self.folder / "controller", "controller")

    def start(self, *options: str, env: Mapping[str, str] | None = None) -> None:
        """Start it with the fleet file of the folder; returns when it answers. What it stored
        before is still there.
        """
        places = {"--state": "controller", "--fleet": "fleet.yaml", "--trust": "trust"}
        words = [word for flag, name in places.items() for word in (flag, str(self.folder / name))]
        with (self.folder / "controller.log").open("ab") as log:
            argv = [sys.executable, "-m", "fleet_controller.app.main", *words, *options]
            self.process = subprocess.Popen(
                argv,
                stdout=log,
                stderr=log,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        wait_until(lambda: self._answers() or not self.alive, TOGETHER_S, "the controller answers")
        if not self.alive:
            raise LabTrouble(f"the controller ended: {self.log()}")

    def _answers(self) -> bool:
        with grpc.insecure_channel(self.address) as channel:
            try:
                controller_pb2_grpc.ControllerServiceStub(channel).ListJobs(
                    pb.ListJobsRequest(), timeout=2.0
                )
            except grpc.RpcError:
                return False
            return True

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(timeout=TOGETHER_S)
        self.process = None
        return code

    def log(self) -> str:
        """What it said so far."""
        path = self.folder / "controller.log"
        return path.read_text(errors="replace") if path.exists() else ""


@dataclass(slots=True)
class LabFleet:
    """Agents and a controller that know each other; `folder` is the test's own."""

    lab: Lab
    folder: Path
    authority: Authority
    controller: LabController
    agents: dict[str, LabAgent] = field(default_factory=dict)

    @classmethod
    def open(cls, lab: Lab, folder: Path) -> LabFleet:
        """A fleet without hosts, with an authority of its own."""
        init_trust_folder(folder / "trust", "tester")
        return cls(lab, folder, Authority.open(folder / "trust"), LabController(folder))

    def add(
        self, hosts: Sequence[LabHost], settings: str = "simulated_gpus = 8\n"
    ) -> list[LabAgent]:
        """Install and start agents on hosts that were made `with_venv`; `settings` are further
        lines of their agent.toml.
        """
        added = [LabAgent(host, settings) for host in hosts]
        for agent in added:
            agent.install(self.authority)
            agent.start(wait=False)
            self.agents[agent.host.name] = agent
        for agent in added:
            agent.await_listening()
        self.write_fleet_file()
        return added

    def write_fleet_file(self, more: str = "") -> Path:
        """The fleet file of all agents, `more` lines at its top level; the controller reads it when
        it starts.
        """
        hosts = "".join(
            f"  - {{name: {agent.host.name}, address: {agent.host.address}}}\n"
            for agent in self.agents.values()
        )
        path = self.folder / "fleet.yaml"
        path.write_text(
            f"apiVersion: benchfleet/v1\nkind: Fleet\n{more}defaults: {{simulated_gpus: 8}}\nhosts:\n{hosts}"
        )
        return path

    def up(self, count: int) -> None:
        """`count` hosts with agents and a controller that has met them all."""
        self.add(self.lab.hosts(count, with_venv=True))
        self.controller.start()
        self.await_connected()

    def await_connected(self, *names: str, timeout_s: float = TOGETHER_S) -> None:
        """Return when the controller has a line to these hosts, all without names."""
        wanted = set(names or self.agents)
        wait_until(
            lambda: wanted <= {host.host for host in self.hosts() if host.state == "connected"},
            timeout_s,
            f"connected: {wanted}",
        )

    def await_state(self, name: str, state: str, timeout_s: float = TOGETHER_S) -> None:
        """Return when the controller says `state` of one host, such as unreachable."""
        wait_until(
            lambda: (name, state) in {(host.host, host.state) for host in self.hosts()},
            timeout_s,
            f"{name} is {state}",
        )

    def close(self) -> None:
        """End the controller; agents end with their hosts. The ends of all logs are printed, which
        pytest shows of a test that failed.
        """
        self.controller.kill()
        for name, log in [
            ("controller", self.controller.log()),
            *((agent.host.name, agent.log()) for agent in self.agents.values()),
        ]:
            print(f"--- {name}\n{log[-LOG_END:]}")

    # What the controller says

    def hosts(self) -> tuple[HostStatus, ...]:
        """The hosts as the controller sees them."""
        with self._stub() as stub:
            return tuple(
                from_proto(HostStatus, host)
                for host in stub.ListHosts(pb.ListHostsRequest(), timeout=CALL_S).hosts
            )

    def submit(self, yaml: str) -> str:
        """The id of a new job."""
        with self._stub() as stub:
            return stub.SubmitJob(
                pb.SubmitJobRequest(yaml=yaml, file_name="job.yaml"), timeout=CALL_S
            ).job_id

    def job(self, job_id: str) -> JobDetail:
        """A job with all its trials."""
        with self._stub() as stub:
            return from_proto(
                JobDetail, stub.GetJob(pb.GetJobRequest(job_id=job_id), timeout=CALL_S)
            )

    def results(self, job_id: str) -> JobResults:
        """All runs that are stored."""
        with self._stub() as stub:
            parts = [
                from_proto(JobResults, part)
                for part in stub.GetResults(pb.GetResultsRequest(job_id=job_id), timeout=CALL_S)
            ]
        return replace(parts[0], runs=tuple(run for part in parts for run in part.runs))

    def changes(self, job_id: str, timeout_s: float) -> Iterator[JobChange]:
        """Each change of a job as the controller tells it, also over its restarts, until the job is
        over; LabTrouble after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                with self._stub() as stub:
                    for told in stub.WatchJob(pb.WatchJobRequest(job_id=job_id), timeout=left_s):
                        change = from_proto(JobChange, told)
                        yield change
                        if is_job_over(change.job):
                            return
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    break
                time.sleep(PAUSE_S)
        raise LabTrouble(
            f"job {job_id} did not come to it within {timeout_s:g} s: {self.controller.log()[-4000:]}"
        )

    def wait_for(
        self, job_id: str, wanted: Callable[[TrialStatus], bool], timeout_s: float = 120.0
    ) -> TrialStatus:
        """The first trial that is told to be as wanted; LabTrouble when the job is over before one
        is.
        """
        for change in self.changes(job_id, timeout_s):
            for trial in change.trials:
                if wanted(trial):
                    return trial
        raise LabTrouble(f"job {job_id} is over and no trial ever was as wanted")

    def wait_for_phase(
        self, job_id: str, phase: Phase, host: str = "", timeout_s: float = 120.0
    ) -> TrialStatus:
        """The first trial, of `host` or of any, that is told to be in a phase."""
        return self.wait_for(
            job_id,
            lambda trial: trial.phase is phase and (not host or trial.host == host),
            timeout_s,
        )

    def wait_over(self, job_id: str, timeout_s: float = 300.0) -> JobDetail:
        """The job when it is over."""
        for _ in self.changes(job_id, timeout_s):
            pass
        return self.job(job_id)

    def _stub(self) -> _Stub:
        return _Stub(self.controller.address)

    # What must hold after any fault

    def trouble_with_runs(self, job_id: str) -> list[str]:
        """Why it does not hold that each run is stored exactly once, with its file; empty when it
        does.
        """
        detail, runs = self.job(job_id), self.results(job_id).runs
        found = [
            f"{key} is stored {count} times"
            for key, count in Counter(map(_key, runs)).items()
            if count > 1
        ]
        for trial in detail.trials:
            if trial.outcome is Outcome.OK:
                found += _gaps(
                    trial,
                    [
                        run
                        for run in runs
                        if (run.trial_id, run.attempt) == (trial.trial_id, trial.attempt)
                    ],
                )
        return found + [trouble for run in runs for trouble in self._trouble_with_file(run)]

    def await_runs(self, job_id: str, timeout_s: float = 60.0) -> None:
        """Return when each run is stored once, with its file, which may come after the job is over;
        LabTrouble after `timeout_s`.
        """
        try:
            wait_until(
                lambda: not self.trouble_with_runs(job_id),
                timeout_s,
                "each run is stored once, with its file",
            )
        except LabTrouble as error:
            raise LabTrouble(f"{error}: {'; '.join(self.trouble_with_runs(job_id))}") from None

    def _trouble_with_file(self, run: StoredRun) -> list[str]:
        artifact = run.run.artifact
        if artifact is None or not artifact.name or run.trial_outcome is not Outcome.OK:
            return []
        path = self.folder / "controller/artifacts" / artifact.name
        if not path.exists():
            return [f"the file of {_key(run)} is not there: {artifact.name}"]
        right = hashlib.sha256(path.read_bytes()).hexdigest() == artifact.sha256
        return [] if right else [f"the file of {_key(run)} has another digest"]

    def orphans(self) -> list[str]:
        """Processes on hosts that nobody answers for: neither an agent that lives, nor sshd, nor
        this test stands above them.
        """
        return [
            f"{agent.host.name}: {process}"
            for agent in self.agents.values()
            for process in orphans_of(agent.host)
        ]

    def await_no_orphans(self, timeout_s: float = 30.0) -> None:
        """Return when no host has an orphan, LabTrouble with their words after `timeout_s`."""
        try:
            wait_until(lambda: not self.orphans(), timeout_s, "no orphan on any host")
        except LabTrouble as error:
            raise LabTrouble(f"{error}: {'; '.join(self.orphans())}") from None

    def servers(self) -> list[str]:
        """Servers that run on hosts now."""
        return [
            f"{agent.host.name}: {process}"
            for agent in self.agents.values()
            for process in servers_of(agent.host)
        ]


class _Stub:
    """A channel to the controller for one call."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(
            address, [("grpc.max_receive_message_length", LARGEST_BYTES)]
        )

    def __enter__(self) -> controller_pb2_grpc.ControllerServiceStub:
        return controller_pb2_grpc.ControllerServiceStub(self._channel)

    def __exit__(self, *_: object) -> None:
        self._channel.close()


def orphans_of(host: LabHost) -> list[HostProcess]:
    """Processes of a host that neither an agent nor sshd nor a `run` answers for."""
    processes = host.processes()
    known = {process.outer_pid: process for process in processes}
    return [process for process in processes if not _is_answered_for(process, known)]


def _is_answered_for(process: HostProcess, known: Mapping[int, HostProcess]) -> bool:
    if process.pid == 1 or process.argv == ("sleep", "infinity"):
        return True
    while process.pid != 1:
        words = " ".join(process.argv)
        if words.startswith("sshd:") or "fleet_agent.main" in words:
            return True
        if process.outer_parent not in known:
            return True  # of `run`: its parent is outside the host; or it has just ended
        process = known[process.outer_parent]
    return False


def servers_of(host: LabHost) -> list[HostProcess]:
    """Processes of simulated servers."""
    return [process for process in host.processes() if "fleet_simulator.server" in process.argv]


def _key(run: StoredRun) -> tuple[str, int, str, int]:
    return run.trial_id, run.attempt, run.run.workload, run.run.index


def _gaps(trial: TrialStatus, runs: Sequence[StoredRun]) -> list[str]:
    found = (
        []
        if len(runs) == trial.runs and runs
        else [f"{trial.trial_id}: {trial.runs} runs were told, {len(runs)} are stored"]
    )
    for workload in {run.run.workload for run in runs}:
        indexes = sorted(run.run.index for run in runs if run.run.workload == workload)
        if indexes != list(range(1, len(indexes) + 1)):
            found.append(f"{trial.trial_id}: of {workload} the runs {indexes} are stored")
    return found
