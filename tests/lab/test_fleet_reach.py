"""Promises of how a controller reaches the hosts of its fleet file, on lab hosts: through SSH and a
jump, and as the file changes.
"""

from __future__ import annotations

import signal

from tests.lab.fleet import LabFleet
from tests.lab.hosts import LabHost, wait_until

CONNECTED_S = 30.0


def fleet_text(jump: LabHost, behind: LabHost, more: str = "") -> str:
    """One host that is reached directly, and one that is behind it."""
    near, far = jump.ssh(), behind.ssh()
    keys = f"user: root, identity: {far.identity}, known_hosts: [{far.known_hosts}, {near.known_hosts}]"
    return (
        "apiVersion: benchfleet/v1\nkind: Fleet\ndefaults: {simulated_gpus: 8}\nhosts:\n"
        f"  - {{name: {jump.name}, address: {jump.address}}}\n"
        f"  - {{name: {behind.name}, address: {behind.address}, proxy_jump: root@{jump.address}, {keys}{more}}}\n"
    )


def test_a_host_behind_a_jump_is_reached_through_it_and_again_when_the_jump_is_back(
    lab_fleet: LabFleet,
) -> None:
    jump, behind = (agent.host for agent in lab_fleet.add(lab_fleet.lab.hosts(2, with_venv=True)))
    (lab_fleet.folder / "fleet.yaml").write_text(fleet_text(jump, behind))
    lab_fleet.controller.start()
    lab_fleet.await_connected(timeout_s=CONNECTED_S)
    jump.cut()
    lab_fleet.await_state(behind.name, "unreachable")
    jump.heal()
    lab_fleet.await_connected(timeout_s=CONNECTED_S)


def test_a_changed_fleet_file_holds_at_once_when_the_controller_is_told(
    lab_fleet: LabFleet,
) -> None:
    jump, behind = (agent.host for agent in lab_fleet.add(lab_fleet.lab.hosts(2, with_venv=True)))
    lab_fleet.controller.start()
    lab_fleet.await_connected(timeout_s=CONNECTED_S)
    (lab_fleet.folder / "fleet.yaml").write_text(fleet_text(jump, behind, ", labels: {rack: new}"))
    process = lab_fleet.controller.process
    assert process is not None
    process.send_signal(signal.SIGHUP)
    wait_until(
        lambda: {"rack": "new"} in [host.labels for host in lab_fleet.hosts()],
        CONNECTED_S,
        "the label of the file holds",
    )
    lab_fleet.await_connected(timeout_s=CONNECTED_S)
