"""Promises of the lab itself: hosts are machines of their own, and each fault does what it says and
no more.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet_controller.fleet_file.fleet_loader import load_fleet
from tests.lab import remains
from tests.lab.by_hand import fleet_file
from tests.lab.disk import CHECKOUT
from tests.lab.hosts import LabHost, SshSettings, wait_until
from tests.lab.lab import Lab
from tests.lab.network import CONTROLLER
from tests.lab.programs import LabTrouble, variables

SSH_PORT = 22
CONNECT_S = 0.7
HEALED_S = 20.0
FOLDERS = ("/var", "/root", "/home/bench")  # on a host's disk


@pytest.fixture(scope="module")
def three(shared_lab: Lab) -> list[LabHost]:
    return shared_lab.hosts(3)


@pytest.fixture
def hosts(three: list[LabHost]) -> Iterator[list[LabHost]]:
    """Three hosts without a fault, before and after."""
    yield three
    for host in three:
        host.heal()
        host.free_disk()
        host.skew_clock(0)
        host.boot()


def answers(host: LabHost, timeout_s: float = CONNECT_S) -> bool:
    """Whether its sshd greets this machine."""
    try:
        with socket.create_connection((host.address, SSH_PORT), timeout=timeout_s) as link:
            link.settimeout(timeout_s)
            return link.recv(4) == b"SSH-"
    except OSError:
        return False


def reaches(host: LabHost, address: str) -> bool:
    """Whether a host can open a connection to another one's sshd."""
    opened = host.run(
        [
            "timeout",
            str(CONNECT_S),
            "bash",
            "-c",
            f"exec 3<>/dev/tcp/{address}/{SSH_PORT} && head -c4 <&3",
        ],
        check=False,
    )
    return opened.stdout == "SSH-"


def login(settings: SshSettings, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*settings.argv(), *words], capture_output=True, text=True, timeout=20, check=False
    )


def datagrams_to_closed_ports(host: LabHost) -> int:
    """How many a host's kernel has counted: each that arrives counts, with no program there to lose
    it.
    """
    [_, values] = [
        line.split()
        for line in host.read("/proc/1/net/snmp").splitlines()
        if line.startswith("Udp:")
    ]
    return int(values[2])


def send_datagrams(host: LabHost, count: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(count):
            sender.sendto(b"x", (host.address, 9))


def test_eight_hosts_are_up_within_seconds(lab: Lab) -> None:
    started = time.monotonic()
    hosts = lab.hosts(8)
    assert time.monotonic() - started < 5.0
    assert [host.name for host in hosts] == [f"gpu{number:02}" for number in range(1, 9)]
    assert [answers(host) for host in hosts] == [True] * 8


def test_a_host_has_names_processes_and_files_of_its_own(hosts: list[LabHost]) -> None:
    one, other, _ = hosts
    one.run(["sh", "-c", "echo mine >/etc/of-one; echo mine >/usr/share/of-one"])
    assert one.run(["uname", "-n"]).stdout == "gpu01\n"
    assert one.run(["cat", "/proc/1/cmdline"]).stdout.startswith("bash")
    assert len(one.processes()) < 10 and all(process.pid < 1000 for process in one.processes())
    assert one.path("/etc/of-one").exists() and not other.path("/etc/of-one").exists()
    assert not Path("/etc/of-one").exists() and not Path("/usr/share/of-one").exists()


def test_a_host_sees_nothing_private_of_this_machine(hosts: list[LabHost], tmp_path: Path) -> None:
    (tmp_path / "private").touch()
    hidden = [str(CHECKOUT / "pyproject.toml"), str(tmp_path / "private"), str(remains.ROOT)]
    assert [path for path in hidden if hosts[0].path(path).exists()] == []
    assert hosts[0].run(["ls", "-A", "/root", "/home"]).stdout.split() == [
        "/home:",
        "bench",
        "ops",
        "/root:",
        ".ssh",
    ]


@pytest.mark.parametrize(
    ("user", "becomes_root"), [("root", True), ("ops", True), ("bench", False)]
)
def test_users_log_in_with_their_key_and_have_their_rights(
    hosts: list[LabHost], user: str, becomes_root: bool
) -> None:
    done = login(hosts[0].ssh(user), "id -un; sudo -n true")
    assert (done.stdout, done.returncode == 0) == (f"{user}\n", becomes_root)


def test_each_host_has_a_key_of_its_own_and_a_changed_one_is_told(hosts: list[LabHost]) -> None:
    one, other, _ = hosts
    before = one.known_hosts.read_text()
    assert before.split()[1:] != other.known_hosts.read_text().split()[1:]
    old = one.folder / "known_before"
    old.write_text(before)
    one.change_host_key()
    assert login(one.ssh(), "true").returncode == 0
    refused = login(SshSettings(one.address, "root", str(one.identity), str(old)), "true")
    assert refused.returncode == 255 and "HOST IDENTIFICATION HAS CHANGED" in refused.stderr


def test_a_cut_host_is_unreachable_until_it_is_healed(hosts: list[LabHost]) -> None:
    one, other, _ = hosts
    one.cut()
    assert not answers(one) and not reaches(other, one.address)
    assert answers(other)
    one.heal()
    wait_until(
        lambda: answers(one) and reaches(other, one.address), HEALED_S, "the host is reached again"
    )


def test_a_power_off_leaves_the_disk_and_nothing_else(hosts: list[LabHost]) -> None:
    host = hosts[0]
    daemon = host.begin("counter", ["sleep", "300"], user="bench")
    kept = [f"{folder}/kept" for folder in FOLDERS]
    host.run(
        ["sh", "-c", 'for path in "$@"; do echo written >"$path"; done', "sh", *kept, "/tmp/lost"]
    )
    host.power_off()
    assert (host.up, host.processes(), remains.start_ticks(daemon.outer_pid)) == (False, [], "")
    assert [host.read(path) for path in kept] == ["written\n"] * 3
    with pytest.raises(LabTrouble, match="no power"):
        host.run(["true"])
    host.boot()
    assert host.run(["cat", *kept]).stdout == "written\n" * 3
    assert not host.path("/tmp/lost").exists() and not daemon.alive()


def test_a_host_without_power_says_no_goodbye(hosts: list[LabHost]) -> None:
    host = hosts[0]
    with socket.create_connection((host.address, SSH_PORT), timeout=5) as link:
        assert link.recv(4) == b"SSH-"
        link.settimeout(0.5)
        host.power_off()
        link.recv(100)  # the rest of the greeting
        with pytest.raises(TimeoutError):
            link.recv(1)
        host.boot()
        link.settimeout(5)
        link.sendall(b"still there?\n")
        with pytest.raises(ConnectionResetError):
            link.recv(1)


def test_a_fifth_of_the_frames_is_lost_in_each_direction(hosts: list[LabHost]) -> None:
    host, other, _ = hosts
    assert answers(host) and answers(other)
    host.lose(0.2)
    before = datagrams_to_closed_ports(host), datagrams_to_closed_ports(other)
    send_datagrams(host, 2000)
    send_datagrams(other, 200)
    assert 0.12 < 1 - (datagrams_to_closed_ports(host) - before[0]) / 2000 < 0.28
    assert datagrams_to_closed_ports(other) - before[1] == 200
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
        receiver.bind((host.network.address, 0))
        receiver.settimeout(0.2)
        host.run(
            [
                "bash",
                "-c",
                f"for i in {{1..1000}}; do echo x >/dev/udp/{host.network.address}/{receiver.getsockname()[1]}; done",
            ]
        )
        received = 0
        try:
            while receiver.recv(10):
                received += 1
        except TimeoutError:
            pass
    assert 0.12 < 1 - received / 1000 < 0.28
    host.lose(0)
    before_all = datagrams_to_closed_ports(host)
    send_datagrams(host, 200)
    assert datagrams_to_closed_ports(host) - before_all == 200


def test_a_slow_wire_carries_what_its_rate_allows(hosts: list[LabHost]) -> None:
    host = hosts[0]
    host.slow("8mbit")
    slow_s = seconds_of_three_megabytes(host)
    host.slow("")
    assert slow_s > 2.4  # a busy machine is slower yet, never faster
    assert seconds_of_three_megabytes(host) < slow_s / 2


def seconds_of_three_megabytes(host: LabHost) -> float:
    started = time.monotonic()
    assert login(host.ssh(), "head -c 3000000 /dev/zero").returncode == 0
    return time.monotonic() - started


def test_a_long_wire_takes_its_time_in_both_directions_also_after_a_restart(
    hosts: list[LabHost],
) -> None:
    host, other, _ = hosts
    host.delay(60)
    host.restart()
    started = time.monotonic()
    assert answers(host)
    assert 0.24 < time.monotonic() - started < CONNECT_S  # a handshake and a greeting: four ways
    started = time.monotonic()
    assert answers(other) and time.monotonic() - started < 0.2
    host.heal()
    started = time.monotonic()
    assert answers(host) and time.monotonic() - started < 0.2


def test_a_partition_is_between_two_alone(shared_lab: Lab, hosts: list[LabHost]) -> None:
    one, other, third = hosts
    shared_lab.partition(one, other)
    assert not reaches(one, other.address) and not reaches(other, one.address)
    assert (
        reaches(one, third.address)
        and reaches(third, other.address)
        and answers(one)
        and answers(other)
    )
    shared_lab.join(one, other)
    assert reaches(one, other.address)
    shared_lab.partition(CONTROLLER, one)
    assert not answers(one) and not reaches(one, shared_lab.address) and reaches(other, one.address)
    shared_lab.join(CONTROLLER, one)
    assert answers(one)


def test_a_silence_goes_one_way(shared_lab: Lab, hosts: list[LabHost]) -> None:
    host = hosts[0]
    shared_lab.silence(host, CONTROLLER)
    before = datagrams_to_closed_ports(host)
    send_datagrams(host, 20)
    assert datagrams_to_closed_ports(host) - before == 20
    assert not answers(host)
    shared_lab.join(CONTROLLER, host)
    assert answers(host)


@pytest.mark.parametrize("ahead_s", [7200, -7200])
def test_a_wrong_clock_is_wrong_for_daemons_of_that_host_alone(
    hosts: list[LabHost], ahead_s: int
) -> None:
    host, other, _ = hosts
    host.skew_clock(ahead_s)
    host.run(["rm", "-f", "/tmp/now"])
    host.begin("clock", ["sh", "-c", "date +%s >/tmp/now"], user="bench").wait()
    told = [
        int(host.read("/tmp/now")),
        int(host.run(["date", "+%s"]).stdout),
        int(other.run(["date", "+%s"]).stdout),
    ]
    assert [round((seconds - time.time_ns() / 1e9) / 60) for seconds in told] == [
        ahead_s / 60,
        ahead_s / 60,
        0,
    ]
    host.skew_clock(0)
    assert abs(int(host.run(["date", "+%s"]).stdout) - time.time_ns() / 1e9) < 5


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_full_disk_refuses_what_is_written_until_it_has_room(
    hosts: list[LabHost], folder: str
) -> None:
    host, path = hosts[0], f"{folder}/written"
    host.fill_disk(leave_bytes=1 << 20)
    full = host.run(["dd", "if=/dev/zero", f"of={path}", "bs=64k", "count=32"], check=False)
    assert full.returncode == 1 and "No space left on device" in full.stderr
    assert host.path(path).stat().st_size <= 1 << 20
    host.free_disk()
    host.run(["dd", "if=/dev/zero", f"of={path}", "bs=64k", "count=32"])
    assert hosts[1].disk.free_bytes() > 1 << 30


def test_a_host_with_the_environment_runs_the_project_and_cannot_change_it(lab: Lab) -> None:
    host = lab.host("runner", with_venv=True)
    for user in ("root", "bench"):
        assert (
            host.run(
                [sys.executable, "-c", "import fleet_agent, grpc; print('here')"], user=user
            ).stdout
            == "here\n"
        )
    refused = host.run(["touch", str(CHECKOUT / "written")], check=False)
    assert "Read-only file system" in refused.stderr


def test_a_systemd_runs_units_and_loses_its_power_like_any_host(lab: Lab) -> None:
    host = lab.systemd_host()
    assert host.run(["cat", "/proc/1/comm"]).stdout == "systemd\n"
    unit = host.path("/etc/systemd/system/tick.service")
    unit.write_text(
        "[Service]\nDynamicUser=yes\nExecStart=/bin/sleep infinity\nRestart=always\n[Install]\nWantedBy=multi-user.target\n"
    )
    assert (
        login(host.ssh(), "systemctl enable --now tick && systemctl is-active tick").stdout
        == "active\n"
    )
    host.restart()
    wait_until(
        lambda: login(host.ssh("bench"), "systemctl is-active tick").stdout == "active\n",
        5.0,
        "the unit is back",
    )
    assert (
        "ssh.service"
        in host.run(["systemctl", "list-units", "--state=running", "--plain", "--no-legend"]).stdout
    )
    host.power_off()
    assert host.processes() == []


def test_labs_live_side_by_side(lab: Lab, hosts: list[LabHost]) -> None:
    [here] = lab.hosts(1)
    assert here.name == hosts[0].name and here.address != hosts[0].address
    here.cut()
    assert answers(hosts[0]) and not answers(here)


def test_hosts_by_hand_come_with_a_fleet_file_that_reaches_them(
    shared_lab: Lab, hosts: list[LabHost]
) -> None:
    inventory = load_fleet(fleet_file(hosts, "ops"), "fleet.yaml")
    assert [
        (host.name, host.address, host.ssh.user, host.simulated_gpus) for host in inventory.hosts
    ] == [(host.name, host.address, "ops", 8) for host in hosts]
    assert inventory.hosts[0].ssh.identities == (str(shared_lab.identity),)
    assert inventory.hosts[1].ssh.known_hosts == (str(hosts[1].known_hosts),)


@pytest.mark.parametrize(("ci", "code", "word"), [("", 0, "SKIPPED"), ("true", 1, "ERROR")])
def test_where_no_lab_can_be_made_its_tests_say_why_and_fail_in_ci(
    ci: str, code: int, word: str
) -> None:
    bound = [
        "setpriv",
        "--bounding-set=-sys_admin",
        "--inh-caps=-sys_admin",
    ]  # root of a container without privileges
    one = f"{__file__}::{test_eight_hosts_are_up_within_seconds.__name__}"
    tests = [sys.executable, "-m", "pytest", "-rsE", "-p", "no:cacheprovider", one]
    done = subprocess.run(
        [*bound, *tests],
        cwd=CHECKOUT,
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert word in done.stdout and "does not let root make namespaces" in done.stdout


KILLED = """
import sys
from tests.lab.lab import Lab
lab = Lab.open()
lab.hosts(1)
host = lab.systemd_host()
host.delay(1)
print(lab.folder, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("watcher_dies_too", [False, True], ids=["at once", "at the next start"])
def test_nothing_is_left_of_a_lab_whose_session_was_killed(watcher_dies_too: bool) -> None:
    session = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        cwd=CHECKOUT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with session:
        assert session.stdout
        folder = Path(session.stdout.readline().strip())
        assert len(remains.processes_of(folder)) > 5 and remains.mounts_below(folder)
        if watcher_dies_too:
            remains.end(remains.processes_with("tests.lab.remains", str(folder)))
        session.send_signal(signal.SIGKILL)
    if watcher_dies_too:
        wait_until(lambda: remains.owner_of(folder) is None, 5.0, "the owner is gone")
        Lab.open().close()
    wait_until(lambda: not folder.exists(), 5.0, "the lab of a killed session is removed")
    number = int(folder.name)
    assert (
        remains.links_of(number),
        remains.mounts_below(folder),
        remains.processes_of(folder),
    ) == ([], [], [])
    assert [tree for tree in remains.GROUPS if (tree / remains.group(number)).exists()] == []
    tables = subprocess.run(
        ["nft", "list", "tables"], env=variables(), capture_output=True, text=True, check=True
    ).stdout
    assert remains.table(number) not in tables.split() and not list(
        remains.NAMESPACES.glob(f"{remains.prefix(number)}*")
    )
