"""Promises of the lab itself: hosts are machines of their own, and each fault does what it says and no more."""

from __future__ import annotations

from tests.lab.lab import Lab


def test_hosts_are_machines_of_their_own(shared_lab: Lab) -> None:
    one, other = shared_lab.hosts(2)
    assert [host.run(["uname", "-n"]).stdout for host in (one, other)] == ["gpu01\n", "gpu02\n"]
