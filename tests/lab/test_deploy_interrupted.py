"""Promises of a deploy that is cut off: at any byte, by kill, by a full disk, by a second one; the
next run finishes.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.deploying import OperatorMachine, agents_of, files_of
from tests.lab.hosts import LabHost, wait_until
from tests.lab.lab import Lab

ROOT = "/home/bench/.local/share/benchfleet"
MOMENT_S = 180.0


def size(host: LabHost, path: str) -> int:
    try:
        return host.path(path).stat().st_size
    except OSError:
        return 0


def unpacked(host: LabHost) -> int:
    folder = host.path(f"{ROOT}/wheels")
    return (
        len([path for path in folder.iterdir() if not path.name.startswith(".")])
        if folder.is_dir()
        else 0
    )


MOMENTS: dict[str, Callable[[LabHost], object]] = {
    "at the first byte of the installation": lambda host: host.path(f"{ROOT}/made.jsonl").exists(),
    "in the middle of a large wheel": lambda host: (
        size(host, f"{ROOT}/.incoming.benchfleet-new") > 20 << 20
    ),
    "while a wheel is unpacked": lambda host: list(host.path(f"{ROOT}/wheels").glob(".ray-*")),
    "when all wheels are there": lambda host: unpacked(host) > 24,
    "when the switch is prepared": lambda host: host.path(
        f"{ROOT}/rollback/remembered.json"
    ).exists(),
    "after the switch": lambda host: host.path(f"{ROOT}/current").is_symlink(),
    "when the agent has been started": lambda host: agents_of(host),
}


def test_a_deploy_that_is_killed_at_any_moment_is_finished_by_the_next(
    lab: Lab, tmp_path: Path
) -> None:
    """One host, killed at each moment in turn: every run goes on where the one before was cut off."""
    [host] = lab.hosts(1)
    desk = OperatorMachine(tmp_path)
    desk.knows(host)
    before = files_of(host)
    for moment, has_come in MOMENTS.items():
        process = desk.begin("deploy")
        wait_until(
            lambda has_come=has_come, process=process: has_come(host) or process.poll() is not None,
            MOMENT_S,
            moment,
        )
        assert process.poll() is None, f"{moment}: {(desk.folder / 'begun.log').read_text()}"
        process.kill()
        process.wait()
    told = desk.results("deploy")[host.name]
    assert (told["state"], told["message"]) == ("changed", "")
    assert desk.results("deploy")[host.name]["state"] == "unchanged"
    assert [name for name in files_of(host) if name.endswith(".benchfleet-new")] == []
    assert desk.results("undeploy")[host.name]["state"] == "removed"
    assert files_of(host) == before


def test_ctrl_c_ends_a_deploy_at_once_and_frees_the_host(lab: Lab, tmp_path: Path) -> None:
    [host] = lab.hosts(1)
    desk = OperatorMachine(tmp_path)
    desk.knows(host)
    process = desk.begin("deploy")
    wait_until(
        lambda: size(host, f"{ROOT}/.incoming.benchfleet-new") > 5 << 20,
        MOMENT_S,
        "the copying of a large wheel",
    )
    process.send_signal(signal.SIGINT)
    assert process.wait(30.0) == 1
    said = (desk.folder / "begun.log").read_text()
    assert (said.splitlines()[-1], "Traceback" in said) == ("interrupted", False)
    assert "run the same `fleetctl deploy` again" in said
    wait_until(
        lambda: not [one for one in host.processes() if "-I" in one.argv],
        30.0,
        "the installer there has ended",
    )


def test_a_disk_that_fills_up_under_way_is_told_and_room_is_all_that_is_needed(
    lab: Lab, tmp_path: Path
) -> None:
    [host] = lab.hosts(1)
    desk = OperatorMachine(tmp_path)
    desk.knows(host)
    process = desk.begin("deploy")
    wait_until(
        lambda: size(host, f"{ROOT}/.incoming.benchfleet-new") > 5 << 20,
        MOMENT_S,
        "the copying of a large wheel",
    )
    host.fill_disk(leave_bytes=1 << 20)
    code, said = process.wait(MOMENT_S), (desk.folder / "begun.log").read_text()
    assert code == 1
    assert "No space left on device" in said
    assert "free some space on the host" in said
    refused = desk.results("deploy")[host.name]
    assert "MB free, but the agent needs" in refused["message"]
    host.free_disk()
    assert desk.results("deploy")[host.name]["state"] == "changed"


def test_two_deploys_at_once_do_not_meet(lab: Lab, tmp_path: Path) -> None:
    [host] = lab.hosts(1)
    desk = OperatorMachine(tmp_path)
    desk.knows(host)
    first = desk.begin("deploy")
    wait_until(lambda: size(host, f"{ROOT}/made.jsonl") > 0, MOMENT_S, "the first has begun")
    second = desk.results("deploy")[host.name]
    assert first.wait(MOMENT_S) == 0, (desk.folder / "begun.log").read_text()
    assert second["state"] == "unchanged" or "another deploy is running" in second["message"]
    assert desk.results("deploy")[host.name]["state"] == "unchanged"
    assert len(agents_of(host)) == 1


@pytest.mark.parametrize("place", [ROOT, f"{ROOT}/versions"])
def test_a_folder_of_others_at_our_place_is_not_touched(
    lab: Lab, tmp_path: Path, place: str
) -> None:
    [host] = lab.hosts(1)
    desk = OperatorMachine(tmp_path)
    desk.knows(host)
    host.run(["mkdir", "-p", place], user="bench")
    host.run(["touch", f"{place}/theirs"], user="bench")
    before = files_of(host)
    told = desk.results("deploy")[host.name]
    assert (told["state"], "was not made by a deploy" in told["message"]) == ("failed", True)
    assert files_of(host) == before
