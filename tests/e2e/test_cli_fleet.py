"""Commands that read a fleet file and need no controller, through the real program; and a daemon
that will not start with a wrong one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FLEETCTL = ("-m", "fleet_controller.cli.main")
FLEET = """\
apiVersion: benchfleet/v1
kind: Fleet
currency: EUR
defaults: {cost_per_hour: 36}
hosts:
  - {name: "gpu[1-2]", labels: {gpu: h200}}
  - {name: load1, load_only: true}
"""
JOB = """\
apiVersion: benchfleet/v1
kind: Job
name: job
model: {path: sim/kimi}
engine: {kind: simulated, gpus: 8, args: {tp_size: 8}}
factors: {nccl: {default: {}, tuned: {env: {NCCL_PROTO: LL}}}}
baseline: {nccl: default}
workloads: {single: {concurrency: 1, output_tokens: 50}}
measure: {launches: 3}
hosts: {labels: {gpu: h200}}
"""


def run(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "BENCHFLEET_STATE": str(folder / "state"),
        **env,
    }
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def test_plan_is_for_the_hosts_of_the_fleet_file_here_and_tells_its_cost(folder: Path) -> None:
    plan = json.loads(run(folder, *FLEETCTL, "plan", "job.yaml", "--json").stdout)
    assert plan["hosts"] == ["gpu1", "gpu2"]
    estimate = plan["estimate"]
    assert (estimate["cost"], estimate["currency"]) == (
        pytest.approx(2 * 36 * estimate["minutes"] / 60),
        "EUR",
    )
    text = run(folder, *FLEETCTL, "plan", "job.yaml")
    assert " EUR (a guess" in text.stdout and "hosts of fleet.yaml" in text.stderr


@pytest.mark.parametrize("how", ["option", "variable"])
def test_another_fleet_file_can_be_named(folder: Path, how: str) -> None:
    (folder / "other.yaml").write_text(
        "apiVersion: benchfleet/v1\nkind: Fleet\nhosts: [{name: box, labels: {gpu: h200}}]\n"
    )
    words = ["--fleet", "other.yaml"] if how == "option" else []
    env = {"BENCHFLEET_FLEET": "other.yaml"} if how == "variable" else {}
    plan = json.loads(run(folder, *FLEETCTL, "plan", "job.yaml", "--json", *words, **env).stdout)
    assert (plan["hosts"], plan["estimate"]["cost"], plan["estimate"]["currency"]) == (
        ["box"],
        None,
        None,
    )


def test_plan_refuses_labels_that_no_host_of_the_fleet_has_at_their_line(folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB.replace("gpu: h200", "gpu: h100"))
    ended = run(folder, *FLEETCTL, "plan", "job.yaml", "--json")
    findings = [
        (one["code"], one["line"], one["column"])
        for one in json.loads(ended.stdout)["findings"]
        if one["severity"] == "error"
    ]
    assert (ended.returncode, findings) == (2, [("no_such_label", 10, 23)])


def test_lint_knows_a_fleet_file_from_a_job(folder: Path) -> None:
    assert [
        run(folder, *FLEETCTL, "lint", name).returncode for name in ("fleet.yaml", "job.yaml")
    ] == [0, 0]
    (folder / "fleet.yaml").write_text(FLEET.replace("kind: Fleet\n", ""))
    found = json.loads(run(folder, *FLEETCTL, "lint", "fleet.yaml", "--json").stdout)["findings"]
    assert [(one["code"], one["key"]) for one in found] == [("missing_key", "kind")]


def test_the_ssh_configuration_of_the_user_is_taken_in(folder: Path) -> None:
    (folder / ".ssh").mkdir()
    (folder / ".ssh" / "config").write_text(
        "Host gpu*\n StrictHostKeyChecking no\n ProxyCommand nc %h %p\n"
    )
    found = json.loads(run(folder, *FLEETCTL, "lint", "fleet.yaml", "--json").stdout)["findings"]
    assert [(one["code"], one["line"]) for one in found] == [
        ("host_keys_checked", 6),
        ("proxy_command", 6),
    ]


def test_what_init_writes_has_nothing_to_tell(tmp_path: Path) -> None:
    assert run(tmp_path, *FLEETCTL, "init", "new", "--fleet").returncode == 0
    assert (
        run(tmp_path, *FLEETCTL, "lint", "new/fleet.yaml").stderr == "new/fleet.yaml: no findings\n"
    )


def test_the_schema_of_either_file_is_printed(tmp_path: Path) -> None:
    assert (
        json.loads(run(tmp_path, *FLEETCTL, "schema", "fleet").stdout)["title"]
        == "benchfleet fleet"
    )


def test_a_daemon_does_not_start_with_a_wrong_fleet_file_and_tells_every_finding(
    folder: Path,
) -> None:
    (folder / "fleet.yaml").write_text(
        FLEET.replace("currency: EUR", "currency: Euro").replace("cost_per_hour", "password")
    )
    ended = run(
        folder, "-m", "fleet_controller.app.main", "--state", "controller", "--fleet", "fleet.yaml"
    )
    assert ended.returncode == 2
    assert [line.split(": ")[1] for line in ended.stderr.splitlines()] == [
        "error bad_currency",
        "error password_key",
    ]


def test_a_daemon_says_that_hosts_on_other_machines_need_an_authority(folder: Path) -> None:
    ended = run(
        folder, "-m", "fleet_controller.app.main", "--state", "controller", "--fleet", "fleet.yaml"
    )
    assert ended.returncode == 2
    assert (
        "hosts on other machines (gpu1 and 2 more) need TLS" in ended.stderr
        and "fleetctl init" in ended.stderr
    )
