"""Owns one lab: a number that nobody else has, its network, its hosts, its end. Several labs live
side by side.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab import remains
from tests.lab.disk import CHECKOUT, Disk, Key
from tests.lab.hosts import LabHost
from tests.lab.network import CONTROLLER, Network, Place
from tests.lab.programs import LAYER, LabTrouble, call, detach

LABS = 200
HOSTS = 200


@dataclass(slots=True)
class Lab:
    """A network with hosts on it. `Lab.open()` makes one, `close()` removes it whole; it also ends
    when this process does.
    """

    folder: Path
    network: Network
    identity: Path
    authorized: str
    all: list[LabHost] = field(default_factory=list)

    @classmethod
    def open(cls) -> Lab:
        """An empty lab. The remains of labs whose session has ended are removed first."""
        with remains.alone():
            remains.remove_ownerless()
            folder = next(
                (
                    path
                    for path in (remains.ROOT / str(number) for number in range(LABS))
                    if not path.exists()
                ),
                None,
            )
            if folder is None:
                raise LabTrouble(f"{LABS} labs are in use: {remains.ROOT}")
            folder.mkdir(mode=0o700)
            (folder / "owner").write_text(f"{os.getpid()} {remains.start_ticks(os.getpid())}")
        detach(
            [sys.executable, "-S", "-m", "tests.lab.remains", str(folder)],
            folder / "watcher.log",
            {"PYTHONPATH": str(CHECKOUT)},
        )
        key = Key.make()
        (folder / "id").write_bytes(key.private)
        (folder / "id").chmod(0o600)
        (folder / "id.pub").write_text(f"{key.public}\n")
        lab = cls(folder, Network(int(folder.name)), folder / "id", key.public)
        try:
            lab.network.make()
            lay_programs(folder / "programs")
        except BaseException:
            lab.close()
            raise
        return lab

    @property
    def address(self) -> str:
        """Where hosts reach this machine: the controller's address."""
        return self.network.address

    def hosts(
        self, count: int, prefix: str = "gpu", with_venv: bool = False, disk: str = "2g"
    ) -> list[LabHost]:
        """`count` more hosts, named gpu01 and on, booted; together they take about a second."""
        first = len(self.all) + 1
        made = [
            self._make(f"{prefix}{number:02}", with_venv, disk)
            for number in range(first, first + count)
        ]
        self._boot(made)
        return made

    def host(self, name: str, with_venv: bool = False, disk: str = "2g") -> LabHost:
        """One more host with a name of your own, booted."""
        made = self._make(name, with_venv, disk)
        self._boot([made])
        return made

    def systemd_host(self, name: str = "", with_venv: bool = False, disk: str = "2g") -> LabHost:
        """One more host whose pid 1 is a real systemd, booted; sshd is its ssh.service."""
        made = self._make(name or f"unit{len(self.all) + 1:02}", with_venv, disk, systemd=True)
        self._boot([made])
        return made

    def _make(self, name: str, with_venv: bool, disk: str, systemd: bool = False) -> LabHost:
        number = len(self.all) + 1
        if number > HOSTS or any(host.name == name for host in self.all):
            raise LabTrouble(
                f"lab {self.network.number} cannot take a host {name}: {len(self.all)} hosts, names are unique"
            )
        folder = self.folder / name
        place = Place(self.network.number, number)
        host = LabHost(
            name,
            place,
            self.network,
            folder,
            Disk(folder / "disk", disk),
            self.identity,
            with_venv,
            systemd,
        )
        (folder / "root").mkdir(parents=True)
        key = Key.make()
        host.disk.make(
            name, {other.name: other.address for other in [*self.all, host]}, key, self.authorized
        )
        if systemd:
            host.disk.make_units()
        host.write_known_hosts(key)
        self.all.append(host)
        return host

    def _boot(self, hosts: Sequence[LabHost]) -> None:
        self.network.plug_in([host.place for host in hosts])
        for host in hosts:
            host.start()
        for host in hosts:
            host.await_sshd()

    def partition(self, one: LabHost | str, other: LabHost | str) -> None:
        """Nothing passes between these two, all else does; CONTROLLER is this machine. Nobody's
        link shows it.
        """
        self.silence(one, other)
        self.silence(other, one)

    def join(self, one: LabHost | str, other: LabHost | str) -> None:
        """End `partition` and `silence` between these two."""
        self.network.unsilence(self._mac(one), self._mac(other))
        self.network.unsilence(self._mac(other), self._mac(one))

    def silence(self, source: LabHost | str, target: LabHost | str) -> None:
        """Nothing that the one sends reaches the other; the way back is open."""
        self.network.silence(self._mac(source), self._mac(target))

    def _mac(self, who: LabHost | str) -> str:
        if isinstance(who, str) and who != CONTROLLER:
            raise LabTrouble(f"{who!r} is no host; this machine is {CONTROLLER!r}")
        return self.network.mac if isinstance(who, str) else who.place.mac

    def close(self) -> None:
        """Remove every process, link, mount and file; LabTrouble when something is left."""
        with remains.alone():
            remains.remove(self.folder)
            left = [*remains.links_of(self.network.number), *remains.mounts_below(self.folder)]
            left += [str(path) for path in self.folder.glob("*")]
        if left:
            raise LabTrouble(f"left over by lab {self.network.number}: {', '.join(left)}")


def lay_programs(folder: Path) -> None:
    """The unpacked programs on a disk of the lab's own: no layer of a root may lie below another
    one.
    """
    folder.mkdir()
    call(["mount", "-t", "tmpfs", "-o", "size=512m,mode=755", "lab-programs", str(folder)])
    if LAYER.is_dir():
        call(["cp", "--archive", f"{LAYER}/.", str(folder)])
