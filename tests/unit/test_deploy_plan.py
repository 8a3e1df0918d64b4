"""Promises of the plan of a deploy: facts and a fleet file's host in, commands out. Each case is a
file; its name is the promise.

A case says what differs from a bare host with systemd where root logs in; `commands` are the words
in which a dry run tells them.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fleet_agent.app.config import parse_config
from fleet_controller.core.inventory import Allow, FleetHost, Install, Ssh
from fleet_controller.deploy.deploy_plan import DeployPlan, plan_deploy
from fleet_controller.deploy.host_commands import (
    MakeFolder,
    PutFile,
    SendWheel,
    SwitchLink,
    command_json,
)
from fleet_controller.deploy.host_facts import (
    Installed,
    PlacedFile,
    ProbeFacts,
    UserAccount,
    parse_facts,
)
from fleet_controller.deploy.install_location import choose_location
from fleet_controller.deploy.rendered_files import config_text, unit_text
from fleet_controller.deploy.wanted_install import (
    AgentInterpreter,
    TrustFiles,
    WantedInstall,
    choose_python,
)
from fleet_controller.deploy.wheel_bundle import Bundle, BundleFile
from fleet_protos.errors import ConfigError

CASES = sorted((Path(__file__).parent / "data/deploy").glob("*.json"))
WHEELS = (
    BundleFile(
        "benchfleet-9-aaaa", Path("benchfleet-9-py3-none-any.whl"), 1_000_000, "a" * 64, 4_000_000
    ),
    BundleFile("ray-1-bbbb", Path("ray-1-cp311.whl"), 80_000_000, "b" * 64, 200_000_000),
)
BUNDLE = Bundle("9", WHEELS)
BARE: Mapping[str, Any] = {
    "uid": 0, "user": "root", "home": "/root", "system": {"PRETTY_NAME": "Debian"}, "machine": "x86_64", "libc": "glibc 2.36",
    "pythons": [{"path": "/usr/bin/python3.11", "version": [3, 11, 2], "usable": True, "named": "python3"}],
    "systemd": True, "user_systemd": False, "linger": False, "sudo": False, "gpus": 8, "cpus": 64,
    "users": {"benchfleet": None}, "installed": [],
}  # fmt: skip
ROOTS = [{"root": "/opt/benchfleet"}, {"root": "/root/.local/share/benchfleet"}]
T = TypeVar("T")


def value_of(kind: type[T], told: Mapping[str, Any]) -> T:
    """A frozen value from JSON: lists are tuples, nested values by the name of their field."""
    nested: dict[str, type[Any]] = {"ssh": Ssh, "allow": Allow, "install": Install}
    plain = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in told.items()
        if key not in nested
    }
    made = plain | {key: value_of(kind, told[key]) for key, kind in nested.items() if key in told}
    assert is_dataclass(kind) and set(made) <= {field.name for field in fields(kind)}
    return kind(**made)


def facts_of(told: Mapping[str, Any]) -> ProbeFacts:
    room = {"exists": False, "mode": "", "free_bytes": 10**10, "state_free_bytes": 10**10}
    return parse_facts(
        {**BARE, **told, "installed": [{**room, **found} for found in told.get("installed", ROOTS)]}
    )


def wanted_of(
    host: FleetHost, facts: ProbeFacts, *, certificate: bool = True, force: bool = False
) -> WantedInstall:
    python = choose_python(host, facts)
    proof = (b"certificate", b"key") if certificate else (None, None)
    interpreter = AgentInterpreter(python.version, python.path)
    return WantedInstall(
        host,
        choose_location(host, facts),
        BUNDLE,
        interpreter,
        TrustFiles(b"ca", b"revoked", *proof),
        "keeper",
        force,
    )


def settled(host: FleetHost, facts: ProbeFacts, **differs: Any) -> tuple[ProbeFacts, WantedInstall]:
    """Facts of a host where everything was carried out as planned, and what is wanted of it now."""
    wanted = wanted_of(host, facts)
    plan = plan_deploy(facts, wanted)
    files = {
        command.path: [hashlib.sha256(command.content).hexdigest(), command.ownership.mode, 0]
        for command in plan.commands
        if isinstance(command, PutFile)
    }
    there = Installed(
        wanted.location.root, True, wanted.location.mode, plan.version, versions=(plan.version,), wheels=tuple(item.name for item in WHEELS),
        files={path: PlacedFile(*about) for path, about in files.items()},
        folders=tuple(command.path for command in plan.commands if isinstance(command, MakeFolder)), active=True, free_bytes=10**10,
    )  # fmt: skip
    users = {
        wanted.location.owner: facts.users.get(wanted.location.owner)
        or UserAccount(999, 999, wanted.location.state)
    }
    after = replace(facts, installed=(replace(there, **differs),), users=users)
    return after, wanted_of(host, after, certificate=False)


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_case(path: Path) -> None:
    case = json.loads(path.read_text())
    host, facts = (
        value_of(FleetHost, {"name": "gpu01", "address": "10.0.0.1", **case["host"]}),
        facts_of(case["facts"]),
    )
    if "error" in case:
        with pytest.raises(ConfigError) as raised:
            plan_deploy(facts, wanted_of(host, facts))
        assert [raised.value.message, raised.value.hint] == case["error"]
        return
    plan = plan_deploy(facts, wanted_of(host, facts, force=case.get("force", False)))
    version = plan.version
    told = [str(command).replace(version, "VERSION") for command in plan.commands]
    assert told == case["commands"]
    assert [note.replace(version, "VERSION") for note in plan.notes] == case.get("notes", [])


HOST = FleetHost("gpu01", "10.0.0.1")


def kinds(plan: DeployPlan) -> list[str]:
    return [type(command).__name__ for command in plan.commands]


@pytest.mark.parametrize("mode", ["system", "daemon"])
def test_what_was_carried_out_is_not_planned_again(mode: str) -> None:
    facts, wanted = settled(replace(HOST, install=Install(mode)), facts_of({}))
    assert plan_deploy(facts, wanted).commands == ()


def test_an_agent_that_does_not_run_is_started_without_any_other_change() -> None:
    facts, wanted = settled(HOST, facts_of({}), active=False)
    assert kinds(plan_deploy(facts, wanted)) == ["RunProgram"] * 3 + ["CheckHealth", "DropRollback"]


@pytest.mark.parametrize(
    "state",
    ["versions", "versions/own", "wheels", "./pythons", "etc", "rollback/x", "current", "", ".."],
)
def test_a_state_among_the_programs_is_refused_for_the_next_deploy_would_remove_it(
    state: str,
) -> None:
    facts = facts_of({"installed": [{"root": "/opt/agents/one"}]})
    wanted = wanted_of(
        replace(HOST, install=Install("daemon", "/opt/agents/one", f"/opt/agents/one/{state}")),
        facts,
    )
    outside = replace(wanted.location, state="/opt/agents") if state == ".." else wanted.location
    with pytest.raises(ConfigError, match=r"install\.state"):
        plan_deploy(facts, replace(wanted, location=outside))


@pytest.mark.parametrize(
    "state", ["/opt/agents/one/state", "/opt/agents/one-state", "/data/versions"]
)
def test_a_state_beside_the_programs_is_taken(state: str) -> None:
    facts = facts_of({"installed": [{"root": "/opt/agents/one"}]})
    assert plan_deploy(
        facts, wanted_of(replace(HOST, install=Install("daemon", "/opt/agents/one", state)), facts)
    ).commands


def test_a_new_certificate_takes_no_restart() -> None:
    facts, wanted = settled(HOST, facts_of({}))
    wanted = replace(
        wanted, trust_files=TrustFiles(b"ca", b"revoked", b"new certificate", b"new key")
    )
    plan = plan_deploy(facts, wanted)
    assert (kinds(plan), plan.restarts) == (
        ["PutFile", "PutFile", "CheckHealth", "DropRollback"],
        False,
    )
    assert [str(command).split()[1] for command in plan.commands[:2]] == [
        "/etc/benchfleet/agent.key",
        "/etc/benchfleet/agent.crt",
    ]


def test_a_change_of_the_configuration_restarts_after_it_was_seen_that_no_trial_runs() -> None:
    facts, _ = settled(HOST, facts_of({}))
    plan = plan_deploy(
        facts, wanted_of(replace(HOST, labels={"gpu": "h200"}), facts, certificate=False)
    )
    assert kinds(plan) == ["RequireIdle", "SaveForRollback", "PutFile", "SwitchLink"] + [
        "RunProgram"
    ] * 3 + ["CheckHealth", "DropRollback"]


def test_only_wheels_that_are_missing_by_digest_are_copied() -> None:
    facts, wanted = settled(HOST, facts_of({}))
    newer = BundleFile(
        "benchfleet-9-cccc", Path("benchfleet-9-py3-none-any.whl"), 1_000_000, "c" * 64, 4_000_000
    )
    plan = plan_deploy(facts, replace(wanted, bundle=Bundle("9", (newer, WHEELS[1]))))
    assert [command.name for command in plan.commands if isinstance(command, SendWheel)] == [
        "benchfleet-9-cccc"
    ]
    links = [
        (command.path, command.to) for command in plan.commands if isinstance(command, SwitchLink)
    ]
    before = facts.installed[0].current
    assert links == [
        ("/opt/benchfleet/previous", f"versions/{before}"),
        ("/opt/benchfleet/current", f"versions/{plan.version}"),
    ]


@pytest.mark.parametrize(("restarted", "first"), [(False, "RequireIdle"), (True, "CheckHealth")])
def test_a_switch_that_was_cut_off_is_finished(restarted: bool, first: str) -> None:
    facts, wanted = settled(HOST, facts_of({}), remembered=True, restarted=restarted)
    assert kinds(plan_deploy(facts, wanted))[0] == first


def test_a_key_shows_in_no_form_of_a_plan() -> None:
    facts = facts_of({})
    wanted = replace(
        wanted_of(HOST, facts),
        trust_files=TrustFiles(b"ca", b"revoked", b"certificate", b"PRIVATE-KEY"),
    )
    plan = plan_deploy(facts, wanted)
    assert "PRIVATE-KEY" not in repr(plan) + repr(wanted) + json.dumps(
        [dict(command_json(command)) for command in plan.commands]
    )


def test_an_agent_reads_from_its_configuration_what_the_fleet_file_said() -> None:
    host = FleetHost(
        "gpu01", "10.0.0.1", labels={"gpu": 'h200 "x"\\ é', "a.b": "\x7f"}, gpus=4, simulated_gpus=2, server_python="/home/me/py",
        metrics="127.0.0.1:9", env={"NCCL_SOCKET_IFNAME": "eth0"}, allow=Allow(python=("/opt/*",), env=("MY_*",)), load_only=True,
    )  # fmt: skip
    text = config_text(choose_location(host, facts_of({})), host)
    config = parse_config(text.encode(), "agent.toml")
    assert (config.host, config.listen, config.gpus, config.simulated_gpus) == (
        "gpu01",
        "0.0.0.0:7433",
        4,
        2,
    )
    assert (dict(config.labels), config.metrics) == (dict(host.labels), "127.0.0.1:9")
    assert (config.policy.load_only, config.server.python, dict(config.server.env)) == (
        True,
        "/home/me/py",
        {"NCCL_SOCKET_IFNAME": "eth0"},
    )
    assert config.tls is not None and str(config.tls.key) == "/etc/benchfleet/agent.key"
    assert tomllib.loads(text)["allow"]["env"] == ["MY_*"]


def test_an_agent_behind_ssh_listens_on_loopback_alone() -> None:
    host = replace(HOST, through_ssh=True, port=9)
    assert (
        tomllib.loads(config_text(choose_location(host, facts_of({})), host))["listen"]
        == "127.0.0.1:9"
    )


def test_a_unit_lets_servers_write_to_state_home_and_the_caches_that_are_named() -> None:
    host = replace(
        HOST,
        env={"HF_HOME": "/data/hf", "NCCL_SOCKET_IFNAME": "eth0"},
        install=Install(run_as="me"),
    )
    facts = facts_of({"users": {"me": [1000, 1000, "/home/me"], "benchfleet": None}})
    text = unit_text(choose_location(host, facts), host)
    assert "\nReadWritePaths=/var/lib/benchfleet -/home/me -/data/hf\n" in text
    assert [word for word in text.split() if word.startswith("@")] == []


def test_servers_in_containers_keep_the_rights_that_their_tools_need() -> None:
    host = replace(HOST, allow=Allow(images=("lmsysorg/*",)))
    text = unit_text(choose_location(host, facts_of({})), host)
    assert "NoNewPrivileges" not in text
    assert "RestrictNamespaces" not in text


def test_the_unit_that_is_shown_in_the_repository_is_the_one_that_is_written() -> None:
    shown = Path(__file__).parents[2] / "deploy/benchfleet-agent.service"
    assert shown.read_text() == unit_text(choose_location(HOST, facts_of({})), HOST)
