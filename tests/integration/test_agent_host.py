"""A real agent on recorded GPUs: it refuses before a launch, tells what a server left on a GPU, and
sets that GPU aside.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from fleet_protos import events as ev
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Outcome
from tests.integration.test_agent import DirectClient, over, trial

BOX = Path(__file__).parents[1] / "unit/data/host/eight-gpus.json"


def hold(recording: Path, gpu: int, used_mib: int, pid: int = 0) -> None:
    document = json.loads(BOX.read_text())
    document["gpus"][gpu]["memory_used_mib"] = used_mib
    document["processes"] = (
        [{"pid": pid, "name": "", "used_mib": used_mib, "gpu": gpu, "visible": False}]
        if pid
        else []
    )
    spare = recording.with_suffix(".new")
    spare.write_text(json.dumps(document))
    os.replace(spare, recording)


@contextmanager
def agent_on(recording: Path, state: Path) -> Iterator[DirectClient]:
    argv = [
        sys.executable,
        "-m",
        "fleet_agent.main",
        "--state",
        str(state),
        "--host-name",
        "here",
        "--memory-back",
        "0.5",
    ]
    with (state / "log").open("ab") as log:
        process = subprocess.Popen(
            [*argv, "--recorded-gpus", str(recording)], stderr=log, start_new_session=True
        )
    line = DirectClient(state)
    try:
        grpc.channel_ready_future(line.channel).result(timeout=30)
        yield line
    finally:
        line.channel.close()
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=60)
    assert code == 0, (state / "log").read_text()


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    hold(tmp_path / "gpus.json", 0, 640)
    return tmp_path / "gpus.json"


def test_a_host_is_described_by_its_gpus_and_a_busy_one_is_refused_before_anything_is_started(
    recording: Path, tmp_path: Path
) -> None:
    hold(recording, 2, 66760, pid=4194005)
    with agent_on(recording, tmp_path) as line:
        assert (line.about().gpus, line.about().fingerprint["topology"]) == (8, "nvlink-NV18-8")
        events = line.see(trial())
        assert (over(events).outcome, over(events).kind, over(events).failure_class) == (
            Outcome.FAILED, ErrorKind.CONFLICT, "gpu_busy_leftover",
        )  # fmt: skip
        assert "pid 4194005" in over(events).message
        assert not [
            event
            for event in events
            if isinstance(event.body, ev.ServerLaunching | ev.ServerLaunched)
        ]


def test_memory_that_a_server_leaves_fails_its_trial_and_sets_the_gpu_aside_until_it_is_back(
    recording: Path, tmp_path: Path
) -> None:
    with agent_on(recording, tmp_path) as line:
        first = trial(tokens=2000)
        line.start(first)
        line.events(first, until=ev.ServerReady)
        hold(recording, 5, 40640, pid=4194006)
        ended = over(line.events(first))
        assert (ended.outcome, ended.failure_class) == (Outcome.FAILED, "left_over_processes")
        assert "GPU5 still holds 39.1 GiB" in ended.message and "pid 4194006" in ended.message
        with pytest.raises(grpc.RpcError) as refused:
            line.start(trial())
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "quarantined: GPU5" in str(refused.value.details())
        hold(recording, 5, 640)
        assert over(see_once_accepted(line)).outcome is Outcome.OK


def see_once_accepted(line: DirectClient) -> list[ev.Event]:
    """The events of a trial that is handed over again and again, as a controller does."""
    wanted = trial()
    while True:
        try:
            return line.see(wanted)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.FAILED_PRECONDITION:
                raise


def test_the_proof_carries_the_identity_and_what_held_at_the_time(
    recording: Path, tmp_path: Path
) -> None:
    with agent_on(recording, tmp_path) as line:
        proofs = []
        for used_mib in (640, 900):
            hold(recording, 0, used_mib)
            events = line.see(trial())
            proofs += [
                event.body.fingerprint
                for event in events
                if isinstance(event.body, ev.ConfigurationProved)
            ]
    first, second = proofs
    assert first["identity"] == second["identity"]
    assert first["now.gpu_memory_used_mib"] != second["now.gpu_memory_used_mib"]
    assert (first["gpu_name"], first["least_pcie_width"]) == ("NVIDIA H200", "16")


def test_the_check_of_a_host_prints_findings_and_fingerprint_and_says_when_one_is_an_error(
    recording: Path,
) -> None:
    argv = [
        sys.executable,
        "-m",
        "fleet_agent.main",
        "check",
        "--json",
        "--recorded-gpus",
        str(recording),
    ]
    well = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (well.returncode, json.loads(well.stdout)["fingerprint"]["gpus"]) == (0, "8")
    hold(recording, 3, 70000)
    ill = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (
        ill.returncode,
        [finding["code"] for finding in json.loads(ill.stdout)["findings"]][:1],
    ) == (1, ["gpu_busy_leftover"])
    missing = subprocess.run(
        [*argv, "--recorded-gpus", f"{recording}.none"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (missing.returncode, "Traceback" in missing.stderr) == (2, False)


def test_what_blurs_the_numbers_of_a_host_stands_beside_each_of_them(
    recording: Path, tmp_path: Path
) -> None:
    document = json.loads(BOX.read_text())
    document["gpus"][3]["power_limit_w"] = 450
    recording.write_text(json.dumps(document))
    with agent_on(recording, tmp_path) as line:
        events = line.see(trial())
        assert over(events).outcome is Outcome.OK, over(events).message
        runs = [event.body.run for event in events if isinstance(event.body, ev.RunFinished)]
        told = [[gate.message for gate in run.gates if gate.code == "gpus_unequal"] for run in runs]
        assert runs and all(len(of_run) == 1 and "GPU3" in of_run[0] for of_run in told), told


def test_findings_that_cannot_be_written_end_without_a_traceback(recording: Path) -> None:
    argv = [sys.executable, "-m", "fleet_agent.main", "check", "--recorded-gpus", str(recording)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert "No space left" in done.stderr
