"""Whatever the bytes, reading a fleet file ends in a fleet with sound hosts or in findings with a
place.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_controller.fleet_file.fleet_loader import check_fleet
from fleet_controller.fleet_file.fleet_template import fleet_template
from fleet_controller.ssh.ssh_config import SshConfig, read_ssh_config
from fleet_controller.yaml.fields import NAME_PATTERN
from fleet_controller.yaml.findings import ERROR, FleetRejected

MARKS = st.sampled_from(
    [
        "*x",
        "&x ",
        "<<: ",
        "!foo ",
        "[",
        "{",
        "}",
        "]",
        ": ",
        "- ",
        "\t",
        "\n",
        "'",
        '"',
        "0x",
        "~",
        "#",
        "[1-",
        "-9]",
        "{name}",
    ]
)
KEYS = st.sampled_from(
    ["name", "address", "user", "port", "identity", "proxy_jump", "known_hosts", "labels", "gpus", "python", "image",
     "env", "cost_per_hour", "load_only", "metrics", "agent_port", "allow", "install", "mode", "hosts", "groups", "defaults", "password",
     "x-a", "a"]
)  # fmt: skip
WORDS = st.sampled_from(
    [
        "gpu[1-3]",
        "gpu[01-",
        "{name}.x",
        "10.0.0.[1-3]",
        "me@a:22,b",
        "none",
        "Fleet",
        "127.0.0.1:9",
        "/opt",
        "auto",
        "[fe80::1]",
    ]
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), WORDS
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=6)),
    max_leaves=25,
)


def is_read_or_refused(content: str | bytes) -> None:
    try:
        loaded = check_fleet(content, "f", SshConfig(), Path("/nowhere"))
    except FleetRejected as rejected:
        lines = len(content.splitlines()) + 2
        assert any(finding.severity == ERROR for finding in rejected.findings)
        assert all(
            1 <= finding.line <= lines and finding.column >= 1 and finding.message
            for finding in rejected.findings
        )
        return
    hosts = loaded.inventory.hosts
    assert hosts and len({host.name for host in hosts}) == len(hosts)
    assert all(
        re.fullmatch(NAME_PATTERN, host.name) and host.address and 0 < host.port < 65536
        for host in hosts
    )
    assert all(finding.severity != ERROR for finding in loaded.findings)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused_with_findings(content: bytes) -> None:
    is_read_or_refused(content)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_damaged_fleet_file_is_read_or_refused_with_findings(data: st.DataObject) -> None:
    text = fleet_template()
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(text)))
        removed = data.draw(st.integers(0, 20))
        text = text[:at] + data.draw(st.one_of(MARKS, st.just(""))) + text[at + removed :]
    is_read_or_refused(text)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(KEYS, TREES, max_size=6),
    st.lists(st.one_of(WORDS, st.dictionaries(KEYS, TREES, max_size=5)), max_size=4),
)
def test_any_tree_under_known_keys_is_read_or_refused_with_findings(
    tree: dict[str, Any], hosts: list[Any]
) -> None:
    head = {"apiVersion": "benchfleet/v1", "kind": "Fleet"}
    is_read_or_refused(json.dumps(head | tree | ({"hosts": hosts} if hosts else {})))


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("Hostn *!gpu\n\t =\"'aMatchexcIludeProxyJmp,:[%]"), max_size=120))
def test_any_ssh_configuration_is_read_or_told(tmp_path_factory: Any, text: str) -> None:
    file = tmp_path_factory.mktemp("ssh") / "config"
    file.write_text(text)
    try:
        check_fleet(
            "apiVersion: benchfleet/v1\nkind: Fleet\nhosts: [gpu1]\n",
            "f",
            read_ssh_config(file),
            Path("/nowhere"),
        )
    except FleetRejected as rejected:
        assert rejected.findings
