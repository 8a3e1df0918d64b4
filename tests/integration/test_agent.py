"""A real agent process with real servers, real Ray and real gRPC: each way a trial can end, and
what is left of it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from fleet_agent.host.processes import read_stat
from fleet_protos import events as ev
from fleet_protos.codec import from_proto, to_proto
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import (
    EngineKind,
    EngineSpec,
    Measure,
    Outcome,
    Phase,
    Simulation,
    TrialSpec,
    Workload,
    is_void,
)
from fleet_protos.v1 import agent_pb2, agent_pb2_grpc, trial_pb2
from fleet_transport.sockets import listen_address
from tests.fakes.simulated_server import simulated_server

LIMIT_S = 60.0
NCCL = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
numbers = itertools.count(1)


class DirectClient:
    """A test's line to the agent."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.address = listen_address(state, "agent")
        self.channel = grpc.insecure_channel(self.address)
        self.stub = agent_pb2_grpc.AgentServiceStub(self.channel)

    def about(self) -> agent_pb2.DescribeResponse:
        return self.stub.Describe(agent_pb2.DescribeRequest(), timeout=10)

    def start(self, spec: TrialSpec) -> bool:
        request = agent_pb2.StartTrialRequest(spec=to_proto(spec, trial_pb2.TrialSpec()))
        return self.stub.StartTrial(request, timeout=10).known

    def events(self, spec: TrialSpec, until: type = ev.TrialOver) -> list[ev.Event]:
        """That trial's events up to the first of the kind."""
        seen = []
        for answer in self.stub.WatchEvents(agent_pb2.WatchEventsRequest(), timeout=LIMIT_S):
            event = from_proto(ev.Event, answer.event)
            if (event.trial_id, event.attempt) == (spec.trial_id, spec.attempt):
                seen.append(event)
                if isinstance(event.body, until):
                    return seen
        raise AssertionError("the stream ended")

    def see(self, spec: TrialSpec) -> list[ev.Event]:
        self.start(spec)
        return self.events(spec)


@contextmanager
def running_agent(state: Path) -> Iterator[tuple[DirectClient, subprocess.Popen[bytes]]]:
    with (state / "log").open("ab") as log:
        argv = [
            sys.executable,
            "-m",
            "fleet_agent.main",
            "--state",
            str(state),
            "--host-name",
            "here",
            "--gpus",
            "0",
        ]
        process = subprocess.Popen(argv, stderr=log, start_new_session=True)
    line = DirectClient(state)
    try:
        grpc.channel_ready_future(line.channel).result(timeout=30)
        yield line, process
    finally:
        line.channel.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=60)
    assert code in (0, -signal.SIGKILL), (state / "log").read_text()


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectClient]:
    with running_agent(tmp_path_factory.mktemp("agent")) as (line, _):
        line.see(trial())  # Ray starts once, so that no test's children are taken for another's
        yield line


def trial(
    env: dict[str, str] | None = None,
    *,
    gpus: int = 8,
    timeout_s: float = 20.0,
    tokens: int = 60,
    **knobs: object,
) -> TrialSpec:
    simulation = Simulation(**{"time_scale": 100.0, "seed": 1, **knobs})
    engine = EngineSpec(
        kind=EngineKind.SIMULATED, model_path="sim/model", args={"tp_size": 8}, env=env or {}, gpus=gpus,
        ready_timeout_s=20.0, stop_timeout_s=1.0, simulation=simulation,
    )  # fmt: skip
    workload = Workload(
        name="single",
        concurrency=1,
        requests=1,
        prompts="builtin:chat",
        output_tokens=tokens,
        api="chat",
        request_timeout_s=timeout_s,
    )
    return TrialSpec(
        trial_id=f"t-{next(numbers)}", attempt=1, job_id="t", job_name="t", variant="v", block=1, host="here", engine=engine,
        workloads=(workload,), measure=Measure(runs_min=2, runs_max=2),
    )  # fmt: skip


def bodies(events: list[ev.Event], kind: type) -> list:
    return [event.body for event in events if isinstance(event.body, kind)]


def over(events: list[ev.Event]) -> ev.TrialOver:
    assert isinstance(events[-1].body, ev.TrialOver)
    return events[-1].body


def is_alive(pid: int) -> bool:
    """False for a zombie too: it holds nothing and waits for a parent that is not ours."""
    stat = read_stat(pid)
    return stat is not None and stat.is_alive


def assert_server_gone(events: list[ev.Event]) -> None:
    for launched in bodies(events, ev.ServerLaunched):
        assert not is_alive(launched.pid)
    assert [stopped.left_over for stopped in bodies(events, ev.ServerStopped)] == [()] * len(
        bodies(events, ev.ServerLaunched)
    )


def test_a_trial_goes_through_every_phase_and_each_event_names_its_cause(
    line: DirectClient,
) -> None:
    events = line.see(trial())
    assert over(events) == ev.TrialOver(Outcome.OK)
    phases = list(dict.fromkeys(event.phase for event in events))
    assert phases == [
        Phase.LAUNCHING,
        Phase.WARMING,
        Phase.MEASURING,
        Phase.COLLECTING,
        Phase.STOPPING,
        Phase.OVER,
    ]
    known = {event.sequence for event in events}
    assert all(event.cause in known for event in events[1:])
    assert_server_gone(events)


def test_token_counts_are_the_servers_and_exact(line: DirectClient) -> None:
    runs = [body.run for body in bodies(line.see(trial(tokens=77)), ev.RunFinished)]
    assert [run.output_tokens for run in runs] == [77, 77]
    assert [run.requests_failed for run in runs] == [0, 0]
    assert [gate for run in runs for gate in run.gates] == []


def test_a_trial_that_is_handed_over_twice_runs_once(line: DirectClient) -> None:
    spec = trial()
    assert line.start(spec) is False
    assert line.start(spec) is True
    assert len(bodies(line.events(spec), ev.TrialAccepted)) == 1
    assert line.start(spec) is True


def test_two_trials_never_share_a_gpu(line: DirectClient) -> None:
    first = trial(ready_after_s=30.0)
    line.start(first)
    with pytest.raises(grpc.RpcError) as refused:
        line.start(trial(gpus=1))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "0 are free" in refused.value.details()
    line.stub.CancelTrial(
        agent_pb2.CancelTrialRequest(trial_id=first.trial_id, attempt=1, reason="enough"),
        timeout=10,
    )
    assert over(line.events(first)).outcome is Outcome.CANCELLED
    assert over(line.see(trial(gpus=1))).outcome is Outcome.OK


def test_a_cancelled_trial_stops_its_server_and_says_why(line: DirectClient) -> None:
    spec = trial(tokens=20_000)
    line.start(spec)
    line.events(spec, ev.ServerReady)
    line.stub.CancelTrial(
        agent_pb2.CancelTrialRequest(trial_id=spec.trial_id, attempt=1, reason="not needed"),
        timeout=10,
    )
    events = line.events(spec)
    assert over(events).outcome is Outcome.CANCELLED
    assert "not needed" in over(events).message
    assert_server_gone(events)


def test_a_server_that_dies_fails_the_trial_it_was_serving(line: DirectClient) -> None:
    events = line.see(trial(crash_after_s=0.3, tokens=20_000))
    end = over(events)
    assert (end.outcome, end.kind) == (Outcome.FAILED, ErrorKind.SERVER_EXITED)
    (failed,) = bodies(events, ev.ServerFailed)
    assert failed.exit_code == -signal.SIGKILL
    assert failed.log_tail
    assert_server_gone(events)


def test_another_server_at_the_address_is_never_measured(line: DirectClient) -> None:
    events = line.see(trial(wrong_identity=True))
    assert over(events).outcome is Outcome.FAILED
    assert over(events).failure_class == "wrong_identity"
    assert bodies(events, ev.RunFinished) == []
    assert_server_gone(events)


def test_a_server_that_never_becomes_ready_ends_at_its_deadline(line: DirectClient) -> None:
    spec = trial(ready_after_s=60.0)
    events = line.see(replace(spec, engine=replace(spec.engine, ready_timeout_s=1.0)))
    assert (over(events).kind, over(events).failure_class) == (
        ErrorKind.SERVER_UNHEALTHY,
        "not_ready",
    )
    assert "not ready within 1 s" in over(events).message
    assert_server_gone(events)


def test_a_server_that_hangs_gives_no_number(line: DirectClient) -> None:
    spec = trial(hang=True, timeout_s=0.5)
    events = line.see(replace(spec, engine=replace(spec.engine, ready_timeout_s=2.0)))
    assert over(events).outcome is Outcome.FAILED
    assert (
        "has not answered for" in over(events).message
    )  # it is there: "nothing answers" would send the user to the wrong place
    assert "ConnectionRefused" not in over(events).message
    assert bodies(events, ev.RunFinished) == []
    assert_server_gone(events)


def test_short_answers_void_the_runs_and_then_the_trial(line: DirectClient) -> None:
    events = line.see(trial(short_outputs=True))
    end = over(events)
    assert (end.outcome, end.kind, end.failure_class) == (
        Outcome.FAILED,
        ErrorKind.GATE_VOIDED,
        "short_output",
    )
    runs = [body.run for body in bodies(events, ev.RunFinished)]
    assert len(runs) == 3
    assert all(is_void(run) for run in runs)


def test_variables_lost_on_the_way_are_caught_before_a_single_run(line: DirectClient) -> None:
    events = line.see(trial(NCCL, lost_env=("NCCL_PROTO",)))
    end = over(events)
    assert (end.kind, end.failure_class) == (ErrorKind.GATE_VOIDED, "env_not_effective")
    assert "NCCL_PROTO" in end.message
    assert bodies(events, ev.RunFinished) == []
    assert_server_gone(events)


def test_variables_that_arrive_trip_no_gate(line: DirectClient) -> None:
    events = line.see(trial(NCCL))
    (proved,) = bodies(events, ev.ConfigurationProved)
    assert proved.gates == ()
    assert over(events).outcome is Outcome.OK


def test_a_server_that_ignores_term_is_killed_and_nothing_is_left(line: DirectClient) -> None:
    events = line.see(trial(ignore_term=True))
    (stopped,) = bodies(events, ev.ServerStopped)
    assert (stopped.ended_by, stopped.left_over) == ("kill", ())
    assert over(events).outcome is Outcome.OK
    assert_server_gone(events)


def test_a_server_gets_its_declared_environment_and_nothing_else(line: DirectClient) -> None:
    (launched,) = bodies(line.see(trial(NCCL)), ev.ServerLaunched)
    assert set(launched.env) == {"PATH", "LANG", "HOME", "TMPDIR", "BENCHFLEET_LAUNCH", *NCCL} - (
        {"HOME", "TMPDIR"} - set(launched.env)
    )


def test_artifacts_arrive_with_the_digest_that_was_told(line: DirectClient) -> None:
    events = line.see(trial())
    artifacts = [body.run.artifact for body in bodies(events, ev.RunFinished)]
    artifacts += [
        artifact for body in bodies(events, ev.EvidenceCollected) for artifact in body.artifacts
    ]
    assert len(artifacts) == 4
    for artifact in artifacts:
        chunks = list(
            line.stub.FetchArtifact(agent_pb2.FetchArtifactRequest(name=artifact.name), timeout=10)
        )
        content = b"".join(chunk.data for chunk in chunks)
        assert hashlib.sha256(content).hexdigest() == artifact.sha256
        tail = line.stub.FetchArtifact(
            agent_pb2.FetchArtifactRequest(name=artifact.name, offset=len(content) - 1), timeout=10
        )
        assert b"".join(chunk.data for chunk in tail) == content[-1:]


@pytest.mark.parametrize("name", ["../journal/events.jsonl", "/etc/passwd", "none/1/x", ""])
def test_names_that_lead_out_of_the_artifact_folder_are_refused(
    line: DirectClient, name: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        list(line.stub.FetchArtifact(agent_pb2.FetchArtifactRequest(name=name), timeout=10))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_controller_that_knows_another_journal_is_told(line: DirectClient) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        list(line.stub.WatchEvents(agent_pb2.WatchEventsRequest(agent_id="another"), timeout=10))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_an_external_server_is_measured_and_left_as_it_is_and_a_simulated_one_says_so(
    line: DirectClient, tmp_path: Path
) -> None:
    with simulated_server(
        tmp_path, "--model-path", "sim/model", knobs={"time_scale": 100.0}
    ) as server:
        spec = trial()
        engine = EngineSpec(
            kind=EngineKind.EXTERNAL, model_path="sim/model", url=server.url, ready_timeout_s=10.0
        )
        events = line.see(replace(spec, engine=engine))
        assert server.process.poll() is None
    assert over(events).outcome is Outcome.OK
    assert [type(event.body) for event in events[1:4]] == [
        ev.ServerReady,
        ev.ConfigurationProved,
        ev.WarmedUp,
    ]
    for body in bodies(events, ev.RunFinished):
        assert body.run.time_scale == 1.0
        assert "simulated_server" in [gate.code for gate in body.run.gates]


def test_an_external_sglang_is_held_to_the_length_and_its_cache_is_not_emptied(
    line: DirectClient, tmp_path: Path
) -> None:
    with simulated_server(
        tmp_path, "--model-path", "sim/model", knobs={"time_scale": 200.0}
    ) as server:
        spec = trial()
        engine = EngineSpec(
            kind=EngineKind.EXTERNAL, model_path="sim/model", url=server.url, ready_timeout_s=10.0
        )
        workload = replace(
            spec.workloads[0], output_tokens=900
        )  # left to itself this server ends before 800
        events = line.see(replace(spec, engine=engine, workloads=(workload,)))
        asked = server.log.read_text()
    assert over(events).outcome is Outcome.OK
    assert "/flush_cache" not in asked


def test_an_engine_that_this_host_lacks_is_refused(line: DirectClient) -> None:
    spec = trial()
    with pytest.raises(grpc.RpcError) as refused:
        line.start(replace(spec, engine=replace(spec.engine, kind=EngineKind.UNSPECIFIED)))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_the_socket_is_its_owners_alone(line: DirectClient) -> None:
    mode = os.stat(line.address.removeprefix("unix:")).st_mode
    assert stat.S_IMODE(mode) == 0o600


def test_an_agent_without_ray_and_load_stays_small(line: DirectClient) -> None:
    status = Path(f"/proc/{line.about().pid}/status").read_text()
    resident_kb = int(status.partition("VmRSS:")[2].split()[0])
    assert resident_kb < 120 * 1024


def test_an_agent_that_is_stopped_ends_its_trials_as_failed_so_that_they_are_tried_again(
    tmp_path: Path,
) -> None:
    spec = trial(ready_after_s=60.0)
    with running_agent(tmp_path) as (line, process):
        line.start(spec)
        line.events(spec, ev.ServerLaunched)
        process.send_signal(signal.SIGTERM)
        events = line.events(spec)
        assert process.wait(timeout=30) == 0
    assert (over(events).outcome, over(events).kind) == (Outcome.FAILED, ErrorKind.AGENT_RESTARTED)
    assert_server_gone(events)


def test_an_agent_that_is_being_stopped_leaves_the_next_attempt_to_the_agent_after_it(
    tmp_path: Path,
) -> None:
    with running_agent(tmp_path) as (line, process):
        line.see(trial())  # with a Ray, whose end takes a while
        spec = trial(ready_after_s=20)
        line.start(spec)
        line.events(spec, ev.ServerLaunched)
        process.send_signal(signal.SIGTERM)
        assert over(line.events(spec)).kind is ErrorKind.AGENT_RESTARTED
        with pytest.raises(grpc.RpcError) as refused:
            line.start(replace(spec, attempt=2))
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "the agent is stopping" in (refused.value.details() or "")
        assert process.wait(timeout=60) == 0


def test_an_agent_that_was_killed_finds_its_server_again_and_ends_it(tmp_path: Path) -> None:
    spec = trial(ready_after_s=60.0)
    with running_agent(tmp_path) as (line, process):
        line.start(spec)
        (launched,) = bodies(line.events(spec, ev.ServerLaunched), ev.ServerLaunched)
        process.kill()
        process.wait(timeout=30)
        assert is_alive(launched.pid)
    with running_agent(tmp_path) as (line, _):
        events = line.events(spec)
        assert (over(events).outcome, over(events).kind) == (
            Outcome.FAILED,
            ErrorKind.AGENT_RESTARTED,
        )
        assert_server_gone(events)
        assert line.start(spec) is True


def test_an_agent_without_its_extra_says_so_before_it_launches_anything(tmp_path: Path) -> None:
    arguments = ["fleet-agent", "--state", str(tmp_path / "state")]
    program = f"import sys; sys.modules['ray'] = None; sys.argv = {arguments!r}; from fleet_agent.main import main; sys.exit(main())"
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert told.returncode == 2
    assert told.stderr == "fleet-agent: this installation lacks ray\n  install benchfleet[agent]\n"
    assert not (tmp_path / "state").exists()


def test_a_witness_is_proved_and_gone_before_the_measured_server_is_launched(
    line: DirectClient,
) -> None:
    events = line.see(replace(trial(NCCL), witness=True))
    assert over(events).outcome is Outcome.OK
    servers = (ev.ServerLaunching, ev.ConfigurationProved, ev.ServerStopped, ev.WarmedUp)
    kinds = [type(event.body) for event in events if isinstance(event.body, servers)]
    assert kinds == [*servers[:3], *servers[:2], ev.WarmedUp, ev.ServerStopped]
    assert [body.witness for body in bodies(events, ev.ConfigurationProved)] == [True, False]
    kept = [
        artifact.name.rpartition("/")[2]
        for body in bodies(events, ev.EvidenceCollected)
        for artifact in body.artifacts
    ]
    assert {"server-log.txt", "witness-log.txt"} <= set(kept)
    assert_server_gone(events)


def test_variables_that_a_witness_shows_to_be_lost_end_the_trial_before_a_second_launch(
    line: DirectClient,
) -> None:
    events = line.see(replace(trial(NCCL, lost_env=("NCCL_PROTO",)), witness=True))
    assert (over(events).kind, over(events).failure_class) == (
        ErrorKind.GATE_VOIDED,
        "env_not_effective",
    )
    assert [body.witness for body in bodies(events, ev.ServerLaunching)] == [True]
    assert_server_gone(events)


def test_an_agent_that_was_killed_with_its_witness_up_ends_that_too(tmp_path: Path) -> None:
    spec = replace(trial(ready_after_s=60.0), witness=True)
    with running_agent(tmp_path) as (line, process):
        line.start(spec)
        (launched,) = bodies(line.events(spec, ev.ServerLaunched), ev.ServerLaunched)
        process.kill()
        process.wait(timeout=30)
    with running_agent(tmp_path) as (line, _):
        events = line.events(spec)
        assert (over(events).outcome, over(events).kind) == (
            Outcome.FAILED,
            ErrorKind.AGENT_RESTARTED,
        )
        assert not is_alive(launched.pid)
        assert_server_gone(events)


def test_a_launch_tells_how_it_comes_on_and_how_long_its_phases_took(line: DirectClient) -> None:
    events = line.see(trial(ready_after_s=0.5))
    phases = [body.phase for body in bodies(events, ev.ServerProgressed)]
    assert phases
    assert phases == list(dict.fromkeys(phases))
    (ready,) = bodies(events, ev.ServerReady)
    assert ready.load_s >= 0.5
