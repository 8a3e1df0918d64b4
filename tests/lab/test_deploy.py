"""Promises of `fleetctl deploy` and `undeploy` on hosts that have ssh and a Python, and nothing of
ours.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import fleet_agent
from fleet_agent.storage.journal import Journal
from fleet_protos.events import TrialAccepted
from fleet_protos.trial_types import EngineKind, EngineSpec, Phase, TrialSpec
from tests.lab.deploying import OperatorMachine, agents_of, files_of
from tests.lab.fleet import PORT
from tests.lab.hosts import LabHost, wait_until
from tests.lab.lab import Lab

ROOT = "/home/bench/.local/share/benchfleet"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> OperatorMachine:
    return OperatorMachine(tmp_path_factory.mktemp("desk"))


@pytest.fixture(scope="module")
def daemon_host(shared_lab: Lab, desk: OperatorMachine) -> Iterator[LabHost]:
    """A host without systemd, where user bench without any rights has deployed."""
    [host] = shared_lab.hosts(1)
    desk.knows(host)
    done = desk.fleetctl("deploy", host.name)
    assert done.returncode == 0, done.stderr
    yield host


def test_a_host_from_nothing_gets_a_hardened_unit_and_loses_all_of_it_again(
    lab: Lab, tmp_path: Path
) -> None:
    host, desk = lab.systemd_host(), OperatorMachine(tmp_path)
    desk.knows(host, user="root")
    before, users = files_of(host), host.read("/etc/passwd")
    first = desk.results("deploy")[host.name]
    assert (first["state"], first["message"]) == ("changed", "")
    assert (
        host.run(["stat", "-c", "%U %a", "/etc/benchfleet/agent.key"]).stdout == "benchfleet 600\n"
    )
    assert host.run(["ps", "-o", "user=", "-C", "fleet-agent"]).stdout.split() == ["benchfleet"]
    score = host.run(
        ["systemd-analyze", "security", "--no-pager", "benchfleet-agent.service"]
    ).stdout.splitlines()[-1]
    assert float(score.partition("service: ")[2].split()[0]) <= 4.0
    placed = files_of(host)
    second = desk.results("deploy")[host.name]
    assert (second["state"], second["changes"]) == ("unchanged", 0)
    assert files_of(host) == placed
    assert desk.results("undeploy")[host.name]["state"] == "removed"
    assert host.read("/etc/passwd") == users
    of_users = ("passwd", "group", "shadow", "gshadow", "subuid", "subgid", ".pwd.lock")
    accounts = {f"upper/etc/{name}{end}" for name in of_users for end in ("", "-")}
    assert files_of(host) - before - accounts == set()


def test_an_agent_that_is_killed_comes_back(daemon_host: LabHost, desk: OperatorMachine) -> None:
    [pid] = agents_of(daemon_host)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: agents_of(daemon_host) not in ([], [pid]), 60.0, "the keeper starts another")
    wait_until(lambda: daemon_host.listens(PORT), 60.0, "it listens")
    assert desk.results("deploy", daemon_host.name)[daemon_host.name]["state"] == "unchanged"


def test_a_version_that_does_not_start_is_rolled_back_and_its_last_words_are_told(
    daemon_host: LabHost, desk: OperatorMachine, tmp_path: Path
) -> None:
    shutil.copytree(
        Path(fleet_agent.__file__).parent,
        tmp_path / "fleet_agent",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    (tmp_path / "fleet_agent/main.py").write_text(
        "def main():\n    raise SystemExit('the new version is broken')\n"
    )
    before = daemon_host.run(["readlink", f"{ROOT}/current"]).stdout
    told = desk.results("deploy", daemon_host.name, env={"PYTHONPATH": str(tmp_path)})[
        daemon_host.name
    ]
    assert told["state"] == "rolled_back"
    assert "the new version is broken" in told["message"]
    assert daemon_host.run(["readlink", f"{ROOT}/current"]).stdout == before
    again = desk.results("deploy", daemon_host.name)[daemon_host.name]
    assert (again["state"], again["message"]) == ("unchanged", "")


def test_a_dry_run_prints_every_step_and_takes_none(shared_lab: Lab, desk: OperatorMachine) -> None:
    [host] = shared_lab.hosts(1)
    desk.knows(host)
    before, issued = files_of(host), (desk.folder / "state/trust/issued.json").read_text()
    done = desk.fleetctl("deploy", host.name, "--dry-run")
    assert done.returncode == 0, done.stderr
    steps = done.stdout.splitlines()
    assert steps[0] == f"{host.name}:"
    assert any("copy ray-" in step for step in steps)
    assert f"  write {ROOT}/etc/agent.toml" in {step.partition(" (")[0] for step in steps}
    assert files_of(host) == before
    assert (desk.folder / "state/trust/issued.json").read_text() == issued


def test_a_restart_waits_for_trials_unless_it_is_forced(
    daemon_host: LabHost, desk: OperatorMachine
) -> None:
    name = daemon_host.name
    daemon_host.run(["python3", "-I", f"{ROOT}/keeper.py", "stop", ROOT], user="bench")
    journal = Journal.open(daemon_host.path(f"{ROOT}/state/journal"))
    spec = TrialSpec("t1", host=name, engine=EngineSpec(EngineKind.SIMULATED))
    journal.append(TrialAccepted(spec), "t1", 1, cause=0, phase=Phase.QUEUED, time_unix_ns=1)
    journal.close()
    daemon_host.run(["chown", "-R", "bench:bench", f"{ROOT}/state/journal"])
    desk.knows(daemon_host, more="labels: {changed: now}")
    refused = desk.results("deploy", name)[name]
    assert (refused["state"], "t1/1" in refused["message"], "--force" in refused["hint"]) == (
        "failed",
        True,
        True,
    )
    assert "changed" not in daemon_host.read(f"{ROOT}/etc/agent.toml")
    assert desk.results("undeploy", name)[name]["state"] == "failed"
    forced = desk.results("deploy", name, "--force")[name]
    assert (forced["state"], forced["message"]) == ("changed", "")
    assert "changed" in daemon_host.read(f"{ROOT}/etc/agent.toml")


def test_undeploy_leaves_what_others_put_there_and_tells_it(
    daemon_host: LabHost, desk: OperatorMachine
) -> None:
    foreign = f"{ROOT}/versions/notes.txt"
    daemon_host.run(["touch", foreign], user="bench")
    told = desk.results("undeploy", daemon_host.name, "--force")[daemon_host.name]
    assert told["state"] == "removed"
    assert [note for note in told["notes"] if foreign in note]
    assert daemon_host.run(["find", ROOT, "-type", "f"]).stdout.split() == [foreign]
    assert agents_of(daemon_host) == []
