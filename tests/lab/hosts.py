"""Owns lab hosts: virtual machines on this one, with a network, root, disk, processes and sshd of
their own, and every way to break them.

A host is what the programs under test see of a server: they reach it over ssh and gRPC alone. Knows
nothing of agents or controllers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab import remains
from tests.lab.disk import Disk, Key, hidden_folders, shared_folders
from tests.lab.network import Network, Place
from tests.lab.programs import SYSTEM_PATH, LabTrouble, detach, variables

SOURCE = Path(__file__).parent
BOOT_S = 30.0
POLL_S = 0.005
FAKE_CLOCK = "usr/lib/*/faketime/libfaketimeMT.so.1"
BEGIN = """
log=$1 && shift
setsid --fork sh -c 'echo $$ >"$0.new" && mv "$0.new" "$0" && exec "$@"' "$0" "$@" >>"$log" 2>&1 </dev/null
"""
LISTENING = "0A"  # in /proc/net/tcp
LOOPBACK = ("0100007F:", "00000000000000000000000001000000:")


@dataclass(frozen=True, slots=True)
class SshSettings:
    """All that a client needs in order to log in. `known_hosts` holds the host's key; paths are
    absolute.
    """

    address: str
    user: str
    identity: str
    known_hosts: str
    port: int = 22

    def argv(self) -> list[str]:
        """OpenSSH's client with these settings and no others; add the words of a remote command."""
        strict = [
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
            "BatchMode=yes",
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "ConnectTimeout=5",
        ]
        known = ["-o", f"UserKnownHostsFile={self.known_hosts}"]
        return [
            "ssh",
            "-F",
            "/dev/null",
            *strict,
            *known,
            "-i",
            self.identity,
            "-p",
            str(self.port),
            f"{self.user}@{self.address}",
        ]


@dataclass(frozen=True, slots=True)
class HostProcess:
    """One process of a host: its id inside, its id and its parent's on this machine, its words."""

    pid: int
    outer_pid: int
    outer_parent: int
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Started:
    """A program that was started in a host and belongs to it alone, like a daemon. `log`: its
    output, as the host names the file.
    """

    host: LabHost
    pid: int
    outer_pid: int
    log: str

    def alive(self) -> bool:
        """Whether it still runs."""
        return any(process.outer_pid == self.outer_pid for process in self.host.processes())

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to this one process; harmless when it has ended."""
        if self.alive():
            os.kill(self.outer_pid, number)

    def wait(self, timeout_s: float = 10.0) -> None:
        """Return when it has ended; LabTrouble when that takes longer."""
        wait_until(
            lambda: not self.alive(), timeout_s, f"{self.host.name}: process {self.pid} ends"
        )

    def output(self) -> str:
        """What it printed so far."""
        return self.host.read(self.log)


def wait_until(true: Callable[[], object], timeout_s: float, promise: str) -> None:
    """Return as soon as `true()` is; LabTrouble that names the promise after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline:
            raise LabTrouble(f"not within {timeout_s:g} s: {promise}")
        time.sleep(POLL_S)


@dataclass(slots=True)
class LabHost:
    """One host. It is off until `boot`; a power-off keeps its disk and the faults on its wire,
    nothing else.
    """

    name: str
    place: Place
    network: Network
    folder: Path
    disk: Disk
    identity: Path
    with_venv: bool = False
    systemd: bool = False
    _init: int = field(default=0, init=False)
    _clock_ahead_s: float = field(default=0.0, init=False)

    @property
    def address(self) -> str:
        """IPv4 address, reachable from this machine and from the other hosts of the lab."""
        return self.place.address

    @property
    def known_hosts(self) -> Path:
        """A known_hosts file that holds this host's key alone."""
        return self.folder / "known_hosts"

    def ssh(self, user: str = "root") -> SshSettings:
        """How `root`, `bench` (no rights) or `ops` (sudo without a password) logs in."""
        return SshSettings(self.address, user, str(self.identity), str(self.known_hosts))

    @property
    def up(self) -> bool:
        """Whether it has power."""
        return bool(self._init) and bool(remains.start_ticks(self._init))

    def boot(self, wait: bool = True) -> None:
        """Give it power; returns when sshd listens. Nothing happens to a host that is up."""
        if self.up:
            return
        self.network.plug_in([self.place])
        self.start()
        if wait:
            self.await_sshd()

    def start(self) -> None:
        """Start it on a wire that is plugged in; returns at once."""
        script = "systemd.sh" if self.systemd else "boot.sh"
        namespaces = ["--mount", "--propagation", "private"]
        if not self.systemd:
            namespaces += ["--uts", "--ipc", "--pid", "--fork", "--kill-child=SIGKILL"]
        inside = [] if self.systemd else ["ip", "netns", "exec", self.place.link]
        settings = {
            "LAB_SOURCE": str(SOURCE),
            "LAB_FOLDER": str(self.folder),
            "LAB_NAME": self.name,
            "LAB_GROUP": f"{remains.group(self.network.number)}/{self.name}",
            "LAB_NETWORK": str(remains.NAMESPACES / self.place.link),
            "LAB_LOWER": f"{self.folder.parent / 'programs'}:/",
            "LAB_HIDE": " ".join(hidden_folders()),
            "LAB_SHARE": " ".join(shared_folders() if self.with_venv else []),
        }
        detach(
            [*inside, "unshare", *namespaces, "bash", str(SOURCE / script), f"{self.folder}/"],
            self.folder / "console.log",
            settings,
        )

    def await_sshd(self) -> None:
        """Return when sshd listens inside, whatever the network does."""
        try:
            wait_until(self._has_booted, BOOT_S, f"{self.name} has booted")
        except LabTrouble as error:
            raise LabTrouble(f"{error}; its console: {self.console()}") from None

    def _has_booted(self) -> bool:
        if not self.up:
            self._init = self._find_init()
        return self.listens(22)

    def listens(self, port: int) -> bool:
        """Whether a program of the host listens on this TCP port on an address that the network
        reaches.
        """
        lines = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in _lines(Path(f"/proc/{self._init or 'none'}/net/{table}"))
        ]
        return any(
            words[1].endswith(f":{port:04X}")
            and not words[1].startswith(LOOPBACK)
            and words[3] == LISTENING
            for words in lines
        )

    def _find_init(self) -> int:
        network = _inode(remains.NAMESPACES / self.place.link)
        for pid in remains.all_pids():
            if remains.network_of(pid) == network and _inner_pid(pid) == 1:
                return pid
        return 0

    def power_off(self) -> None:
        """Take its power: the wire is dead first, so that no goodbye gets out, then every process
        at once. The disk stays.
        """
        self.network.pull_wire(self.place)
        init = self._init or self._find_init()
        if init:
            remains.end([init])
        self._init = 0
        wait_until(lambda: not self._networked(), 10.0, f"{self.name} is off")
        self.network.pull_out(self.place)

    def _networked(self) -> list[int]:
        network = _inode(remains.NAMESPACES / self.place.link)
        return [pid for pid in remains.all_pids() if network and remains.network_of(pid) == network]

    def restart(self) -> None:
        """Power-off and boot."""
        self.power_off()
        self.boot()

    def cut(self) -> None:
        """Pull its network cable."""
        self.network.cut(self.place)

    def heal(self) -> None:
        """Put the cable back, and end loss, slowness, delay, partitions and silences of this host."""
        self.network.heal(self.place)

    def lose(self, share: float) -> None:
        """Lose this share (0 to 1) of its frames in each direction; 1: silence, which the host's
        own link does not show.
        """
        self.network.lose(self.place, share)

    def slow(self, rate: str) -> None:
        """Bound its wire in each direction, in tc's words (`10mbit`); empty: as fast as it goes."""
        self.network.slow(self.place, rate)

    def delay(self, ms: float, jitter_ms: float = 0.0) -> None:
        """Make its wire longer by `ms` in each direction; 0 ends it."""
        self.network.delay(self.place, ms, jitter_ms)

    def skew_clock(self, seconds: float) -> None:
        """Let its wall clock be ahead (or behind, below 0) for every program that `run` and `begin`
        start from now on; 0 ends it.

        The monotonic clock stays right. A program that its parent gives another environment has the
        right time, too.
        """
        self._clock_ahead_s = seconds

    @property
    def clock_ahead_s(self) -> float:
        """By how much programs that are started now have the wrong time."""
        return self._clock_ahead_s

    def _clock(self) -> dict[str, str]:
        if not self._clock_ahead_s:
            return {}
        found = [
            path
            for root in (self.folder.parent / "programs", Path("/"))
            for path in root.glob(FAKE_CLOCK)
        ]
        if not found:
            raise LabTrouble(
                "a wrong clock needs libfaketime: tools/lab_programs.sh gets it on Debian"
            )
        library = (
            "/" + str(found[0]).partition("/programs/")[2]
            if "/programs/" in str(found[0])
            else str(found[0])
        )
        switches = {
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_RESET": "1",
        }
        return {"LD_PRELOAD": library, "FAKETIME": f"{self._clock_ahead_s:+f}", **switches}

    def fill_disk(self, leave_bytes: int = 0) -> None:
        """No room on its disk but `leave_bytes`: writers get ENOSPC."""
        self.disk.fill(leave_bytes)

    def free_disk(self) -> None:
        """Room as at the start."""
        self.disk.free()

    def run(
        self,
        argv: Sequence[str],
        user: str = "root",
        env: Mapping[str, str] | None = None,
        check: bool = True,
        timeout_s: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """A finished program inside, its output as text; a non-zero exit is LabTrouble unless
        `check` is off. Works over no network.
        """
        done = subprocess.run(
            [*self._enter(user, env or {}), *argv],
            env=variables(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd="/",
        )
        if check and done.returncode:
            raise LabTrouble(
                f"{self.name}: {' '.join(argv)}: exit code {done.returncode}: {done.stdout}{done.stderr}"
            )
        return done

    def begin(
        self,
        name: str,
        argv: Sequence[str],
        user: str = "root",
        env: Mapping[str, str] | None = None,
    ) -> Started:
        """Start a daemon inside: child of the host's pid 1, output in /var/log/NAME.log. It ends
        with the host's power.
        """
        log, note = f"/var/log/{name}.log", f"/run/{name}.lab-pid"
        self.run(["sh", "-c", f"rm -f {note} && touch {log} && chown {user} {log}"])
        drop = (
            ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
            if user != "root"
            else []
        )
        self.run(
            ["sh", "-c", BEGIN, note, log, *drop, *argv], env={**_variables_of(user), **(env or {})}
        )
        wait_until(lambda: self.path(note).exists(), 10.0, f"{self.name} starts {name}")
        pid = int(self.read(note))
        outer = next((process.outer_pid for process in self.processes() if process.pid == pid), 0)
        return Started(self, pid, outer, log)

    def _enter(self, user: str, env: Mapping[str, str]) -> list[str]:
        if not self.up:
            raise LabTrouble(f"{self.name} has no power")
        inside = [
            "nsenter",
            f"--target={self._init}",
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--root",
            "--wd",
        ]
        drop = (
            ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
            if user != "root"
            else []
        )
        values = {**_variables_of(user), **self._clock(), **env}
        return [*inside, "env", "-i", *(f"{name}={value}" for name, value in values.items()), *drop]

    def processes(self) -> list[HostProcess]:
        """Every process inside, sshd and pid 1 too; none while it is off."""
        if not self.up:
            return []
        space = _inode(Path(f"/proc/{self._init}/ns/pid"))
        found = [pid for pid in remains.all_pids() if _inode(Path(f"/proc/{pid}/ns/pid")) == space]
        return [
            HostProcess(_inner_pid(pid), pid, _parent(pid), _words(pid))
            for pid in found
            if remains.start_ticks(pid)
        ]

    def path(self, inside: str) -> Path:
        """Where this machine finds a file of the host; while it is off, files of its disk that the
        host itself wrote.
        """
        return (
            Path(f"/proc/{self._init}/root") / inside.lstrip("/")
            if self.up
            else self.disk.place_of(inside)
        )

    def read(self, inside: str) -> str:
        """The text of a file of the host."""
        return self.path(inside).read_text(errors="replace")

    def console(self) -> str:
        """What its start and its sshd said."""
        return (self.folder / "console.log").read_text(errors="replace")

    def change_host_key(self) -> None:
        """Show another ssh key from now on, as a host that was set up anew; `known_hosts` holds the
        new one.
        """
        key = Key.make()
        self.disk.set_host_key(key)
        self.write_known_hosts(key)
        if self.up:
            self.restart()

    def write_known_hosts(self, key: Key) -> None:
        """Tell users of `ssh()` that the host has this key."""
        self.known_hosts.write_text(f"{self.address} {key.public}\n")


def _variables_of(user: str) -> dict[str, str]:
    home = "/root" if user == "root" else f"/home/{user}"
    return {
        "PATH": SYSTEM_PATH,
        "HOME": home,
        "USER": user,
        "LOGNAME": user,
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
    }


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()[1:]
    except OSError:
        return []


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _inner_pid(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _words(pid: int) -> tuple[str, ...]:
    try:
        return tuple(
            Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        )
    except OSError:
        return ()
