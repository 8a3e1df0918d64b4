"""What a fleet file comes to: layers laid over each other, ranges written out, ssh as the user's
configuration has it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_controller.core.inventory import Allow, FleetHost, Install, Inventory, Ssh
from fleet_controller.fleet_file.fleet_loader import check_fleet, load_fleet, load_fleet_file
from fleet_controller.fleet_file.fleet_template import fleet_template
from fleet_controller.ssh.ssh_config import SshConfig, read_ssh_config
from fleet_controller.yaml.findings import FleetRejected
from fleet_protos.errors import ConfigError

HEAD = "apiVersion: benchfleet/v1\nkind: Fleet\n"
HOME = Path("/home/USER")


def fleet(text: str, config: SshConfig | None = None) -> Inventory:
    return check_fleet(HEAD + text, "/lab/fleet.yaml", config or SshConfig(), HOME).inventory


def host(text: str, name: str = "gpu01", config: SshConfig | None = None) -> FleetHost:
    found = fleet(text, config).host(name)
    assert found is not None
    return found


def config(folder: Path, text: str) -> SshConfig:
    (folder / "config").write_text(text)
    return read_ssh_config(folder / "config")


def test_a_bare_name_is_a_host_with_every_default() -> None:
    assert host("hosts: [gpu01]\n") == FleetHost(
        name="gpu01", address="gpu01", ssh=Ssh(address="gpu01")
    )


def test_the_nearest_layer_wins_and_mappings_are_laid_over_each_other() -> None:
    found = host(
        "defaults: {user: a, gpus: 8, labels: {x: d, y: d}, env: {A: '1', B: '1', C: '1'}, install: {mode: system, run_as: bench}}\n"
        "groups:\n  g:\n    user: b\n    labels: {y: g, z: g}\n    env: {B: '2'}\n    install: {path: /opt/b}\n"
        "    hosts: [{name: gpu01, labels: {w: h}, env: {C: null}, install: {mode: user}}]\n"
    )
    assert (found.ssh.user, found.gpus) == ("b", 8)
    assert (found.labels, found.env) == (
        {"x": "d", "y": "g", "z": "g", "w": "h"},
        {"A": "1", "B": "2"},
    )
    assert found.install == Install(mode="user", path="/opt/b", run_as="bench")


def test_what_layers_allow_is_taken_together() -> None:
    found = host(
        "defaults: {allow: {python: /a, env: [X_*]}}\nhosts: [{name: gpu01, allow: {python: [/b, /a]}}]\n"
    )
    assert found.allow == Allow(python=("/a", "/b"), env=("X_*",))


def test_a_nearer_image_takes_the_place_of_a_wider_python() -> None:
    text = "defaults: {python: /a/python3}\nhosts: [{name: gpu01, image: 'sglang:1'}, gpu02]\n"
    assert [(one.server_python, one.server_image) for one in fleet(text).hosts] == [
        ("", "sglang:1"),
        ("/a/python3", ""),
    ]


def test_addresses_go_with_the_range_of_the_name() -> None:
    hosts = fleet("hosts: [{name: 'gpu[08-10]', address: '10.0.0.[1-2,9]'}]\n").hosts
    assert [(one.name, one.address) for one in hosts] == [
        ("gpu08", "10.0.0.1"),
        ("gpu09", "10.0.0.2"),
        ("gpu10", "10.0.0.9"),
    ]


def test_the_name_is_put_into_the_address() -> None:
    hosts = fleet(
        "defaults: {address: '{name}.lab'}\nhosts: ['gpu[1-2]', {name: a, address: 10.0.0.9}]\n"
    ).hosts
    assert [one.address for one in hosts] == ["gpu1.lab", "gpu2.lab", "10.0.0.9"]


def test_labels_and_variables_keep_their_spelling() -> None:
    found = host("hosts: [{name: gpu01, labels: {rack: 07, fast: true}, env: {N: 0x10, M: 1e3}}]\n")
    assert (found.labels, found.env) == ({"rack": "07", "fast": "true"}, {"N": "0x10", "M": "1e3"})


def test_paths_are_absolute_from_home_or_from_the_folder_of_the_file() -> None:
    found = host("hosts: [{name: gpu01, identity: [~/.ssh/id, keys/lab], known_hosts: known}]\n")
    assert found.ssh.identities == ("/home/USER/.ssh/id", "/lab/keys/lab")
    assert found.ssh.known_hosts == ("/lab/known",)


def test_what_the_file_leaves_open_is_taken_from_the_ssh_configuration(tmp_path: Path) -> None:
    text = (
        "Host gpu*\n HostName %h.cluster\n User root\n Port 2222\n IdentityFile ~/.ssh/cluster\n IdentitiesOnly yes\n"
        " UserKnownHostsFile /etc/known ~/.ssh/more\n HostKeyAlias cluster\n ConnectTimeout 3\n"
    )
    found = host("hosts: [{name: gpu01, user: bench}]\n", config=config(tmp_path, text))
    assert found.address == "gpu01.cluster"
    assert found.ssh == Ssh(
        "gpu01.cluster", 2222, "bench", (str(Path.home() / ".ssh/cluster"),), ("/etc/known", str(Path.home() / ".ssh/more")),
        host_key_alias="cluster", use_agent=False, connect_timeout_s=3.0,
    )  # fmt: skip


def test_included_files_and_matches_are_read_and_the_block_around_an_include_goes_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "a").write_text("Host gpu01\n User inside\n")
    text = "Host gpu*\n Include conf.d/*\n Port 2222\nMatch host gpu02\n User matched\n"
    inventory = fleet("hosts: [gpu01, gpu02, other]\n", config(tmp_path, text))
    assert [(one.ssh.user, one.ssh.port) for one in inventory.hosts] == [
        ("inside", 2222),
        ("matched", 2222),
        ("", 22),
    ]


def test_no_command_of_a_configuration_is_run_and_that_is_told(tmp_path: Path) -> None:
    text = f'Match host gpu01 exec "touch {tmp_path}/ran"\n User evil\nHost gpu01\n User good\nHost *\n CanonicalizeHostname yes\n'
    loaded = check_fleet(HEAD + "hosts: [gpu01]\n", "fleet.yaml", config(tmp_path, text), HOME)
    assert [one.ssh.user for one in loaded.inventory.hosts] == ["good"]
    assert [finding.code for finding in loaded.findings] == ["ssh_config_ignored"]
    assert not (tmp_path / "ran").exists()


def test_a_configuration_that_includes_itself_is_read_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(f"Include {tmp_path}/config\nHost gpu01\n User me\n")
    assert host("hosts: [gpu01]\n", config=read_ssh_config(tmp_path / "config")).ssh.user == "me"


def test_a_configuration_that_cannot_be_understood_is_told(tmp_path: Path) -> None:
    with pytest.raises(FleetRejected) as rejected:
        fleet("hosts: [gpu01]\n", config(tmp_path, 'Host "gpu01\n User me\n'))
    assert [finding.code for finding in rejected.value.findings] == ["ssh_config"]


def test_jumps_are_looked_up_with_their_own_jumps_before_the_first(tmp_path: Path) -> None:
    text = "Host bastion\n HostName 192.0.2.1\n User me\n ProxyJump outer\nHost outer\n Port 2200\nHost inner\n ProxyJump ignored\n"
    found = host(
        "hosts: [{name: gpu01, proxy_jump: 'bastion,you@inner:23', identity: /key}]\n",
        config=config(tmp_path, text),
    )
    way = [(jump.user, jump.address, jump.port) for jump in found.ssh.jumps]
    assert way == [("", "outer", 2200), ("me", "192.0.2.1", 22), ("you", "inner", 23)]
    assert {jump.identities for jump in found.ssh.jumps} == {("/key",)}


@pytest.mark.parametrize(
    ("keys", "through_ssh"),
    [
        ("", False),
        ("proxy_jump: b", True),
        ("proxy_jump: none", False),
        ("proxy_jump: b, reach: direct", False),
        ("reach: ssh", True),
    ],
)
def test_the_controller_goes_through_ssh_behind_a_jump_unless_the_file_says_otherwise(
    keys: str, through_ssh: bool
) -> None:
    assert host(f"hosts: [{{name: gpu01, {keys}}}]\n").through_ssh is through_ssh


def test_a_jump_of_the_configuration_counts_as_one(tmp_path: Path) -> None:
    assert host(
        "hosts: [gpu01]\n", config=config(tmp_path, "Host gpu*\n ProxyJump b\n")
    ).through_ssh


def test_the_same_address_behind_different_jumps_is_another_machine() -> None:
    text = "hosts: [{name: a, address: 10.0.0.1, proxy_jump: x}, {name: b, address: 10.0.0.1, proxy_jump: y}]\n"
    assert len(fleet(text).hosts) == 2


def test_every_host_knows_its_line() -> None:
    assert fleet("hosts:\n  - gpu01\n  - gpu[02-03]\n").places["host:gpu03"] == (5, 5)


def test_top_of_the_file() -> None:
    found = fleet("currency: EUR\ndeploys_at_once: 4\ngive_up_after: 90s\nhosts: [gpu01]\n")
    assert (found.currency, found.deploys_at_once, found.give_up_after_s, found.file) == (
        "EUR",
        4,
        90.0,
        "/lab/fleet.yaml",
    )


def test_the_template_has_hosts_and_nothing_to_tell() -> None:
    loaded = check_fleet(fleet_template(), "fleet.yaml", SshConfig(), HOME)
    assert ([one.name for one in loaded.inventory.hosts], loaded.findings) == (
        ["gpu01", "gpu02"],
        (),
    )


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load_fleet_file(tmp_path / "none.yaml")


def test_text_alone_is_enough() -> None:
    assert [one.name for one in load_fleet(HEAD + "hosts: [here]\n", "fleet.yaml").hosts] == [
        "here"
    ]
