"""What anybody may send to an agent's socket: refused, told in its log, nothing executed, and the
agent goes on.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet_agent.core.admission.spec_validation import shorten_untrusted
from fleet_protos.attachment import Trace, pack
from fleet_protos.codec import to_proto
from fleet_protos.trial_types import (
    AttachedFile,
    Container,
    EngineKind,
    EngineSpec,
    Gang,
    Lengths,
    LoadPlan,
    Measure,
    Outcome,
    Part,
    Simulation,
    Stage,
    TrialSpec,
    Workload,
)
from fleet_protos.v1 import agent_pb2 as pb
from fleet_protos.v1 import agent_pb2_grpc, trial_pb2
from fleet_transport.sockets import listen_address

SERVICE = "/fleet_protos.v1.AgentService/"
METHODS = [method.name for method in pb.DESCRIPTOR.services_by_name["AgentService"].methods]
STREAMS = {"WatchEvents", "FetchArtifact"}
REFUSED = {grpc.StatusCode.INVALID_ARGUMENT}
NO_GPU = (
    grpc.StatusCode.FAILED_PRECONDITION
)  # it was admitted, and finds no room: nothing is started


@dataclass
class ExposedAgent:
    """A running agent as an intruder sees it: its socket, its log, its folder."""

    state: Path
    stub: agent_pb2_grpc.AgentServiceStub
    channel: grpc.Channel

    @property
    def log(self) -> str:
        return (self.state / "log").read_text()

    def start(self, spec: Message) -> grpc.StatusCode | None:
        try:
            self.stub.StartTrial(pb.StartTrialRequest(spec=spec), timeout=20)
        except grpc.RpcError as error:
            return error.code()
        return None

    def answers(self) -> bool:
        return self.stub.Describe(pb.DescribeRequest(), timeout=20).host == "here"

    def files(self) -> set[str]:
        return {str(path.relative_to(self.state)) for path in self.state.rglob("*")}


@contextlib.contextmanager
def agent(state: Path, simulated_gpus: int = 0) -> Iterator[ExposedAgent]:
    with (state / "log").open("wb") as log:
        options = (
            "--state",
            str(state),
            "--host-name",
            "here",
            "--gpus",
            "0",
            "--simulated-gpus",
            str(simulated_gpus),
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "fleet_agent.main", *options], stderr=log, start_new_session=True
        )
    channel = grpc.insecure_channel(
        listen_address(state, "agent"), options=[("grpc.max_send_message_length", -1)]
    )
    try:
        grpc.channel_ready_future(channel).result(timeout=30)
        yield ExposedAgent(state, agent_pb2_grpc.AgentServiceStub(channel), channel)
    finally:
        channel.close()
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=60)
    assert code == 0, (state / "log").read_text()
    assert "Traceback" not in (state / "log").read_text()


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExposedAgent]:
    with agent(tmp_path_factory.mktemp("agent")) as line:
        yield line


FILE = AttachedFile("trace:a.csv", "0" * 64, pack(Trace((0,), (1,), (1,))))


def whole() -> TrialSpec:
    """A trial with something in every field."""
    engine = EngineSpec(
        kind=EngineKind.SIMULATED, model_path="sim/model", args={"tp_size": 8, "served_model_name": "m", "list": ["a", {"b": "c"}]},
        env={"NCCL_PROTO": "LL"}, gpus=8, python="/usr/bin/python3", url="http://127.0.0.1:1", simulation=Simulation(lost_env=("X",)),
        container=Container("img:v1", "docker", "32g", {"/in": "/out"}, "python3"), entry="serve", cpu_binding="0-1",
        phase_timeouts_s={"start": 60.0}, proof="auto", gang=Gang(1, 0, "127.0.0.1:5"),
    )  # fmt: skip
    load = Workload(
        "w", 1, 1, arrivals="poisson", prompts="builtin:chat", output_tokens=10, api="chat", stages=(Stage(1, 1, 1),),
        output=Lengths("uniform", 1, 5), input=Lengths("uniform", 1, 5), mix=(Part(prompts="builtin:chat"),), cache="salt",
    )  # fmt: skip
    plan = LoadPlan(("here",), 1)
    return TrialSpec(
        "t-1",
        1,
        "job",
        "job",
        "v",
        {"f": "l"},
        1,
        "here",
        engine,
        (load,),
        Measure(1, 1),
        load=plan,
        files=(FILE,),
    )


def proto() -> trial_pb2.TrialSpec:
    return to_proto(whole(), trial_pb2.TrialSpec())


# Every text of a trial, whatever fields are added to it


Place = tuple[str, Callable[[Message, str], None]]


def places(message: Message, path: str = "") -> Iterator[Place]:
    """(dotted name, how to set it) of each text below a message: fields, entries of lists, keys and
    values of maps, parts of a Struct.
    """
    for field in message.DESCRIPTOR.fields:
        yield from _places_of(message, field, f"{path}{field.name}")


def _places_of(message: Message, field: FieldDescriptor, name: str) -> Iterator[Place]:
    def of(top: Message) -> Any:
        return getattr(top, field.name)

    kind = field.message_type
    if kind and kind.GetOptions().map_entry:
        yield f"{name}{{key}}", lambda top, text: _set_key(of(top), text)
        if kind.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING:
            yield f"{name}{{value}}", lambda top, text: _set_value(of(top), text)
    elif kind and kind.full_name == Struct.DESCRIPTOR.full_name:
        yield f"{name}{{key}}", lambda top, text: of(top).update({text: "x"})
        yield f"{name}{{value}}", lambda top, text: of(top).update({"served_model_name": text})
        yield f"{name}{{entry}}", lambda top, text: of(top).update({"list": [{"deep": [text]}]})
    elif kind:
        yield from _inner(of, of(message), name, field.is_repeated)
    elif field.type == FieldDescriptor.TYPE_STRING:
        yield (
            name,
            lambda top, text: (
                of(top).append(text) if field.is_repeated else setattr(top, field.name, text)
            ),
        )


def _inner(
    of: Callable[[Message], Any], content: Any, name: str, is_repeated: bool
) -> Iterator[Place]:
    for inner_name, put in places(
        content[0] if is_repeated else content, f"{name}[0]." if is_repeated else f"{name}."
    ):
        yield (
            inner_name,
            lambda top, text, put=put: put(of(top)[0] if is_repeated else of(top), text),
        )


def _set_key(entries: Any, text: str) -> None:
    value = next(iter(entries.values()), "x")
    entries[text] = value


def _set_value(entries: Any, text: str) -> None:
    entries[next(iter(entries))] = text


PLACES = dict(places(proto()))
MARK = "benchfleet-was-here"
INVISIBLE = [
    "a\0b",
    "a\x1b[2Jb",
    "a\x07",
    "\u202egpj",
    "a\u2028b",
    "zero\u200bwidth",
    "\x85",
    "x" * 40_000,
]
SHELL = [
    f"$(touch {MARK})",
    f"; touch {MARK} ;",
    f"`touch {MARK}`",
    f"| touch {MARK}",
    f"' && touch {MARK} #",
    "${IFS}",
    "%s%n",
    "*",
]
PATHS = [
    "../../../x",
    "/etc/passwd",
    "..",
    ".",
    "",
    "~/x",
    "~root/x",
    "C:\\x",
    "//x",
    "file:///etc/passwd",
]
DASHES = ["-x", "--help", f"--trust-remote-code={MARK}", "-", "--"]
WORDS = [
    "null",
    "true",
    "0",
    "-1",
    "1e999",
    "NaN",
    "ünï",
    "日本",
    "😀",
    "a b",
    " ",
    "\n",
    "a\nb",
    "\t",
    "a=b",
    "{0}",
    "x" * 3000,
]


def test_the_walk_finds_the_texts_that_there_are() -> None:
    assert len(PLACES) >= 32
    some = {
        "trial_id",
        "engine.python",
        "engine.args{value}",
        "engine.env{key}",
        "workloads[0].prompts",
        "levels{value}",
        "load.hosts",
    }
    assert some <= {*PLACES}


@pytest.mark.parametrize("place", PLACES)
def test_no_text_of_a_trial_does_anything(line: ExposedAgent, place: str) -> None:
    before, written = line.files(), set(os.listdir("."))
    for text in (*INVISIBLE, *SHELL, *PATHS, *DASHES, *WORDS):
        spec = proto()
        PLACES[place](spec, text)
        code = line.start(spec)
        assert code in {*REFUSED, NO_GPU}, (place, text)
        if text in INVISIBLE:
            assert code in REFUSED, (place, text)
    assert line.files() == before
    assert set(os.listdir(".")) == written
    assert line.answers()
    assert "\x1b" not in line.log


FOLDERS = ["../../../x", "/etc/passwd", "..", ".", "", "a/b", "-x", "a b", "$(x)", "😀", "x" * 201]


@pytest.mark.parametrize("name", FOLDERS)
def test_the_id_of_a_trial_is_the_name_of_a_folder_and_nothing_else(
    line: ExposedAgent, name: str
) -> None:
    spec = proto()
    spec.trial_id = name
    assert line.start(spec) in REFUSED
    assert f"refused trial {shorten_untrusted(name)} of job 'job'" in line.log


NUMBERS = [
    ("attempt", 0), ("engine.ready_timeout_s", float("nan")), ("engine.stop_timeout_s", float("inf")), ("engine.stop_timeout_s", -1.0),
    ("engine.ready_timeout_s", 1e300), ("measure.runs_max", 4_000_000_000), ("workloads.concurrency", 4_000_000_000),
    ("workloads.requests", 4_000_000_000), ("workloads.duration_s", float("nan")), ("engine.simulation.time_scale", float("inf")),
]  # fmt: skip


@pytest.mark.parametrize(("place", "number"), NUMBERS)
def test_numbers_without_sense_are_refused(line: ExposedAgent, place: str, number: float) -> None:
    spec = proto()
    *way, name = place.split(".")
    message: Any = spec
    for step in way:
        message = getattr(message, step)
        message = message[0] if step == "workloads" else message
    setattr(message, name, number)
    assert line.start(spec) in REFUSED


MANY: list[Callable[[trial_pb2.TrialSpec], None]] = [
    lambda spec: spec.workloads.extend([spec.workloads[0]] * 5000),
    lambda spec: spec.engine.env.update({f"NCCL_{number}": "x" for number in range(5000)}),
    lambda spec: spec.engine.args.update({f"a{number}": "x" for number in range(5000)}),
    lambda spec: spec.engine.args.update({"a": ["x"] * 50_000}),
    lambda spec: spec.engine.env.update({f"NCCL_{number}": "x" * 30_000 for number in range(60)}),
    lambda spec: spec.levels.update({f"f{number}": "x" for number in range(5000)}),
    lambda spec: spec.engine.args.update({"a": float("nan")}),
    lambda spec: spec.engine.args.update({"a": _nested(25)}),
]


def _nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("number", range(len(MANY)))
def test_a_trial_without_end_is_refused(line: ExposedAgent, number: int) -> None:
    spec = proto()
    MANY[number](spec)
    assert line.start(spec) in REFUSED
    assert line.answers()


def test_a_trial_full_of_shell_is_launched_and_executes_nothing(
    tmp_path: Path,
) -> None:
    """What is let in may say anything: it is a word of a list, never a line of a shell."""
    trick = f"$(touch {MARK}); touch {MARK} `touch {MARK}` | touch {MARK}"
    spec = proto()
    for place in (
        "job_name",
        "variant",
        "levels{value}",
        "engine.args{value}",
        "engine.env{value}",
        "engine.model_path",
    ):
        PLACES[place](spec, trick)
    spec.engine.gpus, spec.engine.container.image, spec.engine.simulation.time_scale = 0, "", 100.0
    spec.engine.ClearField("gang")
    del spec.engine.args["list"]
    spec.ClearField("load")
    spec.engine.cpu_binding, spec.engine.entry = "", ""
    spec.engine.ready_timeout_s = spec.engine.stop_timeout_s = 60.0
    spec.workloads[0].request_timeout_s = 60.0
    with agent(tmp_path, simulated_gpus=1) as line:
        assert line.start(spec) is None
        for answer in line.stub.WatchEvents(pb.WatchEventsRequest(), timeout=120):
            if answer.event.WhichOneof("body") == "server_launched":
                assert trick in list(answer.event.server_launched.argv)
            if answer.event.WhichOneof("body") == "server_ready":
                line.stub.CancelTrial(
                    pb.CancelTrialRequest(trial_id=spec.trial_id, attempt=1, reason=trick),
                    timeout=20,
                )
            if answer.event.WhichOneof("body") == "trial_over":
                assert answer.event.trial_over.outcome == Outcome.CANCELLED, (
                    answer.event.trial_over.message
                )
                break
        assert [name for _, _, names in os.walk(line.state) for name in names if MARK in name] == []
        assert MARK not in os.listdir(".")


# Messages that are none


@pytest.mark.parametrize("method", METHODS)
def test_a_message_that_is_none_is_refused_and_told(line: ExposedAgent, method: str) -> None:
    assert _call(line, method, b"\xff" * 40) in REFUSED
    assert _call(line, method, b"\x0a\xff\xff\xff\x7f") in REFUSED
    assert f"{SERVICE}{method} from unix" in line.log
    assert line.answers()


@pytest.mark.parametrize("size_mib", [3, 40, 80])
def test_a_message_that_is_too_large_is_refused(line: ExposedAgent, size_mib: int) -> None:
    code = _call(line, "StartTrial", b"\x0a" + bytes(size_mib << 20))
    assert code in {*REFUSED, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert size_mib > 64 or f"a message of {(size_mib << 20) + 1} bytes is larger than" in line.log
    assert line.answers()


def test_metadata_without_end_is_refused(line: ExposedAgent) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        line.stub.Describe(pb.DescribeRequest(), metadata=[("x", "y" * 100_000)], timeout=20)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert line.answers()


NAMES = [
    "../../log",
    "/etc/passwd",
    "t-1/1/../../../log",
    "t-1/1/\0",
    "",
    "x" * 100_000,
    "\x1b[2J",
    "../journal/events.jsonl",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_file_is_given_out_but_those_of_trials(line: ExposedAgent, name: str) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        list(
            line.stub.FetchArtifact(
                pb.FetchArtifactRequest(name=name, offset=(1 << 64) - 1), timeout=20
            )
        )
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


RAW = [
    b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + b"\xff\xff\xff\x00\x00\x00\x00\x00\x00",  # a frame longer than any may be
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03",  # cut off inside its settings
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    + b"\x00\x00\x04\x01\x04\x00\x00\x00\x01\xff\xff\xff\xff",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),  # TLS
    bytes(70_000),
    b"",
]


@pytest.mark.parametrize("number", range(len(RAW)))
def test_bytes_that_are_no_call_end_that_connection_alone(line: ExposedAgent, number: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.connect(listen_address(line.state, "agent").removeprefix("unix:"))
        raw.settimeout(5)
        with contextlib.suppress(OSError):
            raw.sendall(RAW[number])
            raw.recv(1000)
    assert line.answers()


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(
    method=st.sampled_from(METHODS),
    content=st.binary(max_size=200),
    seed=st.integers(0, 1 << 30),
    whole=st.booleans(),
)
def test_any_bytes_at_any_verb_leave_the_agent_working(
    line: ExposedAgent, method: str, content: bytes, seed: int, whole: bool
) -> None:
    if whole:  # a real request with some bytes changed comes further than noise
        content = _damaged(pb.StartTrialRequest(spec=proto()).SerializeToString(), seed)
    code = _call(line, method, content, timeout_s=0.3 if method in STREAMS else 20)
    assert code not in {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
    }, (method, content)


def _damaged(content: bytes, seed: int) -> bytes:
    draw, damaged = random.Random(seed), bytearray(content)
    for _ in range(draw.randint(1, 6)):
        damaged[draw.randrange(len(damaged))] = draw.randrange(256)
    return bytes(damaged)


def _call(
    line: ExposedAgent, method: str, content: bytes, timeout_s: float = 20
) -> grpc.StatusCode | None:
    """The status of a call with these bytes; None when it was answered."""
    try:
        if method in STREAMS:
            next(
                iter(line.channel.unary_stream(SERVICE + method)(content, timeout=timeout_s)), None
            )
        else:
            line.channel.unary_unary(SERVICE + method)(content, timeout=timeout_s)
    except grpc.RpcError as error:
        return error.code()
    return None
