"""Load from other hosts, on lab hosts: the numbers of a near load, no open port, and a lost load
host costs a run and blames no server.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from statistics import median

import pytest

from fleet_controller.core.controller_api import JobDetail, TrialStatus
from fleet_protos.codec import from_proto
from fleet_protos.errors import ErrorKind
from fleet_protos.trial_types import Outcome, Phase, is_void
from fleet_protos.v1 import controller_pb2 as pb
from tests.lab.faults import Site
from tests.lab.fleet import CALL_S, PORT, LabFleet
from tests.lab.hosts import HostProcess, LabHost, wait_until
from tests.lab.lab import Lab
from tests.lab.ports import WANTS_CERTIFICATE, WANTS_TOKEN, heard_over_tls, look
from tests.lab.trials import HostJournal

SERVER, SENDERS = "gpu01", ("load02", "load03")
JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: {name}
model: {{path: sim/kimi}}
engine: {{kind: simulated, gpus: 8, args: {{tp_size: 8}}, simulation: {{time_scale: 4}}}}
workloads: {{busy: {{concurrency: 8, requests: 24, prompts: builtin:chat, output_tokens: 100}}}}
measure: {{launches: 1, runs: {{min: {runs}, max: {runs}}}}}
hosts: {{names: [gpu01]}}
{load}
"""
NOTICE_S = 10.0
LEAVE_S = 60.0


@pytest.fixture(scope="module")
def fleet(shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabFleet]:
    opened = LabFleet.open(shared_lab, tmp_path_factory.mktemp("fleet"))
    opened.add([shared_lab.host(SERVER, with_venv=True)])
    opened.add([shared_lab.host(name, with_venv=True) for name in SENDERS], "load_only = true\n")
    opened.controller.start()
    opened.await_connected()
    yield opened
    opened.close()


def test_load_of_two_hosts_measures_what_near_load_does_opens_no_port_and_survives_a_killed_part(
    fleet: LabFleet,
) -> None:
    near = fleet.wait_over(fleet.submit(JOB.format(name="near", runs=3, load="")))
    far_id = fleet.submit(JOB.format(name="far", runs=6, load="load: {shards: 2}"))
    fleet.wait_for_phase(far_id, Phase.MEASURING)
    _no_port_is_open(fleet)
    [part] = [
        process
        for process in _of_load(fleet.agents["load03"].host)
        if "fleet_agent.load.cluster.load_host_process" in process.argv
    ]
    os.kill(part.outer_pid, signal.SIGKILL)
    far = fleet.wait_over(far_id)
    first, second = _attempts(fleet, far)
    assert first.kind is ErrorKind.LOAD_FAILED and "load03" in first.message, first
    assert second.outcome is Outcome.OK
    rates = {name: median(_rates(fleet, detail)) for name, detail in (("near", near), ("far", far))}
    print("output_tok_s:", rates)
    assert rates["far"] == pytest.approx(rates["near"], rel=0.1)
    fleet.await_runs(far_id)
    _nothing_is_left(fleet)


def test_a_cut_load_host_is_noticed_within_ten_seconds_and_its_trial_is_measured_again_once_it_is_back(
    fleet: LabFleet,
) -> None:
    job_id = fleet.submit(
        JOB.format(name="cut", runs=8, load="load: {hosts: {names: [load02, load03]}}")
    )
    fleet.wait_for_phase(job_id, Phase.MEASURING)
    cut = fleet.agents["load03"].host
    cut.cut()
    at_ns = time.time_ns()
    journal = HostJournal(Site(fleet, fleet.agents[SERVER]))

    def noticed_ns() -> int:
        return next(
            (
                event.time_unix_ns
                for event in journal.of(job_id)
                if event.attempt == 1 and event.phase is Phase.COLLECTING
            ),
            0,
        )

    wait_until(lambda: noticed_ns() > 0, LEAVE_S, "the lead notices the cut load host")
    noticed_s = (noticed_ns() - at_ns) / 1e9
    print(f"a cut load host was noticed after {noticed_s:.1f} s")
    assert noticed_s < NOTICE_S
    wait_until(lambda: not _of_load(cut), LEAVE_S, "the cut load host gives up by itself")
    cut.heal()
    detail = fleet.wait_over(job_id)
    first, second = _attempts(fleet, detail)
    assert first.kind is ErrorKind.LOAD_FAILED and "load03" in first.message, first
    assert second.outcome is Outcome.OK
    assert [(host.host, host.aside) for host in fleet.hosts() if host.aside] == []
    fleet.await_runs(job_id)
    _nothing_is_left(fleet)


def _attempts(fleet: LabFleet, detail: JobDetail) -> list[TrialStatus]:
    """Each attempt of the job's one trial, as it ended."""
    [trial] = detail.trials
    with fleet._stub() as stub:
        asked = [
            pb.GetTrialRequest(trial_id=trial.trial_id, attempt=number)
            for number in range(1, trial.attempt + 1)
        ]
        return [
            from_proto(TrialStatus, stub.GetTrial(request, timeout=CALL_S).status)
            for request in asked
        ]


def _rates(fleet: LabFleet, detail: JobDetail) -> list[float]:
    newest = {trial.trial_id: trial.attempt for trial in detail.trials}
    runs = fleet.results(detail.job.job_id).runs
    return [
        stored.run.metrics["output_tok_s"]
        for stored in runs
        if stored.attempt == newest[stored.trial_id] and not is_void(stored.run)
    ]


def _no_port_is_open(fleet: LabFleet) -> None:
    """Whoever has no certificate of the cluster is refused by all that its hosts opened for it."""
    found = [listener for agent in fleet.agents.values() for listener in look(agent.host, 22, PORT)]
    for listener in found:
        print(f"{listener.host:8} {listener.port:6} {listener.process:16} {listener.answer}")
    assert {listener.answer for listener in found} == {WANTS_CERTIFICATE, WANTS_TOKEN}
    assert {listener.process for listener in found if listener.answer == WANTS_TOKEN} == {
        "ray::RuntimeEnv"
    }
    assert len({listener.host for listener in found}) == len(fleet.agents)
    own = fleet.agents["load02"].host.path(
        "/var/lib/benchfleet/load-host/cluster"
    )  # that the look can tell: who belongs there is heard
    addresses = {agent.host.name: agent.host.address for agent in fleet.agents.values()}
    closed = [listener for listener in found if listener.answer == WANTS_CERTIFICATE]
    assert [
        listener
        for listener in closed
        if not heard_over_tls(addresses[listener.host], listener.port, own)
    ] == []


def _of_load(host: LabHost) -> list[HostProcess]:
    """Processes that the host has for the load of others."""
    return [
        process
        for process in host.processes()
        if "ray" in " ".join(process.argv) or "fleet_agent.load" in " ".join(process.argv)
    ]


def _nothing_is_left(fleet: LabFleet) -> None:
    """No process, port, secret or folder of a cluster, once its trial is over; the lead's own near
    Ray may stay for later trials.
    """
    hosts = [agent.host for agent in fleet.agents.values()]
    wait_until(
        lambda: not any(_of_load(host) for host in hosts[1:]), LEAVE_S, "the load hosts go home"
    )
    fleet.await_no_orphans()
    wait_until(
        lambda: not [listener for host in hosts for listener in look(host, 22, PORT)],
        LEAVE_S,
        "no port of the cluster is left",
    )
    wait_until(
        lambda: not any(_secrets(host) for host in hosts),
        LEAVE_S,
        "no secret of the cluster is left",
    )
    wait_until(
        lambda: not [path for host in hosts[1:] for path in host.path("/tmp").glob("bf-*")],
        LEAVE_S,
        "no folder of Ray is left",
    )


def _secrets(host: LabHost) -> list[str]:
    folders = [f"/var/lib/benchfleet/load-{part}/cluster" for part in ("lead", "host")]
    return [folder for folder in folders if host.path(folder).exists()]
