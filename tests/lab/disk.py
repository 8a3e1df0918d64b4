"""Owns a lab host's disk: a tmpfs of its own that outlives power-offs, what a fresh one holds, and
how it fills up. Runs nothing inside.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from tests.lab.programs import LabTrouble, call

CHECKOUT = Path(__file__).parents[2]
USERS = {"bench": 1500, "ops": 1501}  # a user without rights; one who may become root by sudo
SYSTEM_FOLDERS = ("usr", "opt", "srv", "var", "etc")
DEPLOYED = (
    "/opt/benchfleet",
    "/etc/benchfleet",
    "/var/lib/benchfleet",
    "/etc/systemd/system/benchfleet-agent.service",
)  # of this machine
SSHD = """\
Port 22
HostKey /etc/ssh/lab_host_key
PidFile /run/sshd.pid
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
UseDNS no
MaxSessions 100
MaxStartups 200
PrintMotd no
PrintLastLog no
Subsystem sftp internal-sftp
LogLevel VERBOSE
"""


@dataclass(frozen=True, slots=True)
class Key:
    """An ssh key pair: OpenSSH's private form, and the line of its public half."""

    private: bytes
    public: str

    @classmethod
    def make(cls) -> Key:
        """A fresh Ed25519 pair."""
        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        return cls(
            private, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        )


def hidden_folders() -> list[str]:
    """Folders of this machine that hosts must not see: homes, and the checkout with all around it."""
    top = CHECKOUT.parts[1]
    return ["/root", "/home", str(CHECKOUT) if top in SYSTEM_FOLDERS else f"/{top}"]


def shared_folders() -> list[str]:
    """What the project's virtual environment needs in order to run in a host: itself, its
    interpreter, the checkout.
    """
    folders = [str(CHECKOUT), sys.prefix, sys.base_prefix]
    return [folder for folder in dict.fromkeys(folders) if folder not in ("/usr", "/usr/local")]


@dataclass(frozen=True, slots=True)
class Disk:
    """A host's disk, mounted at `folder`; `size` in mount's words (`2g`)."""

    folder: Path
    size: str

    def make(self, name: str, addresses: dict[str, str], host_key: Key, authorized: str) -> None:
        """Mount it and lay down what a machine has after it was set up; memory is taken for what is
        written alone.
        """
        self.folder.mkdir(parents=True)
        call(
            [
                "mount",
                "-t",
                "tmpfs",
                "-o",
                f"size={self.size},mode=755",
                "lab-disk",
                str(self.folder),
            ]
        )
        for below in ("upper/etc/ssh", "upper/etc/sudoers.d", "work", "own", "root", "home"):
            (self.folder / below).mkdir(parents=True)
        etc = self.folder / "upper/etc"
        _write_users(etc)
        (etc / "hostname").write_text(f"{name}\n")
        (etc / "hosts").write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"{address} {known}\n" for known, address in addresses.items())
        )
        (etc / "ssh/sshd_config").write_text(SSHD)
        self.set_host_key(host_key)
        _private(etc / "sudoers.d/lab", b"ops ALL=(ALL) NOPASSWD: ALL\n", 0o440)
        self._write_homes(authorized)
        for path in filter(
            os.path.lexists, DEPLOYED
        ):  # a device 0:0 on top is what overlayfs takes for "there is none"
            (self.folder / f"upper{path}").parent.mkdir(parents=True, exist_ok=True)
            os.mknod(self.folder / f"upper{path}", stat.S_IFCHR, os.makedev(0, 0))

    def make_units(self) -> None:
        """What systemd starts there: the units of a bare server and sshd, nothing of what this
        machine has enabled.
        """
        etc = self.folder / "upper/etc"
        units = etc / "systemd/system"
        (units / "multi-user.target.wants").mkdir(parents=True)
        os.setxattr(units, "trusted.overlay.opaque", b"y")
        (units / "multi-user.target.wants/ssh.service").symlink_to(
            "/lib/systemd/system/ssh.service"
        )
        (units / "sshd.service").symlink_to("/lib/systemd/system/ssh.service")
        (units / "console-getty.service").symlink_to("/dev/null")
        (etc / "machine-id").write_text(
            f"{uuid.uuid4().hex}\n"
        )  # an empty one would ask the questions of a first boot
        (etc / "ssh/sshd_config").write_text(
            SSHD.replace("UsePAM no", "UsePAM yes")
        )  # for the session that user units need

    def _write_homes(self, authorized: str) -> None:
        (self.folder / "root").chmod(
            0o711
        )  # so that others may use an interpreter that is shared from below it
        for user, number in {"root": 0, **USERS}.items():
            home = self.folder / ("root" if user == "root" else f"home/{user}")
            (home / ".ssh").mkdir(parents=True)
            (home / ".ssh").chmod(0o700)
            _private(home / ".ssh/authorized_keys", f"{authorized}\n".encode())
            for path in (home, *home.rglob("*")):
                os.chown(path, number, number)

    def set_host_key(self, key: Key) -> None:
        """The key that sshd shows from its next start on."""
        _private(self.folder / "upper/etc/ssh/lab_host_key", key.private)
        (self.folder / "upper/etc/ssh/lab_host_key.pub").write_text(f"{key.public}\n")

    def place_of(self, path: str) -> Path:
        """Where a file that the host wrote lies on its disk, readable while it has no power;
        temporary files are not on it.
        """
        top, _, rest = path.strip("/").partition("/")
        return self.folder / (f"{top}/{rest}" if top in ("root", "home") else f"upper/{top}/{rest}")

    def free_bytes(self) -> int:
        """What can still be written."""
        return shutil.disk_usage(self.folder).free

    def fill(self, leave_bytes: int = 0) -> None:
        """Leave no room but `leave_bytes`: the disk shrinks to what is used, which costs no memory;
        a writer may come between.
        """
        for _ in range(50):
            used = shutil.disk_usage(self.folder).used
            try:
                return self._resize(str(max(used + leave_bytes, os.sysconf("SC_PAGE_SIZE"))))
            except LabTrouble:
                time.sleep(0.01)
        raise LabTrouble(f"{self.folder} is written to so fast that it cannot be filled")

    def free(self) -> None:
        """Give the room back."""
        self._resize(self.size)

    def _resize(self, size: str) -> None:
        call(["mount", "-o", f"remount,size={size}", str(self.folder)])


def _write_users(etc: Path) -> None:
    passwd, group, shadow = (
        Path("/etc", name).read_text() for name in ("passwd", "group", "shadow")
    )
    if "\nsshd:" not in passwd:
        passwd += "sshd:x:1499:65534::/run/sshd:/usr/sbin/nologin\n"
    for user, number in USERS.items():
        passwd += f"{user}:x:{number}:{number}::/home/{user}:/bin/bash\n"
        group += f"{user}:x:{number}:\n"
        shadow += f"{user}:*:20000:0:99999:7:::\n"
    unlocked = "\n".join(
        "root:*:20000:0:99999:7:::" if line.startswith("root:") else line
        for line in shadow.splitlines()
    )
    (etc / "passwd").write_text(passwd)
    (etc / "group").write_text(group)
    _private(etc / "shadow", f"{unlocked}\n".encode(), 0o640)


def _private(path: Path, content: bytes, mode: int = 0o600) -> None:
    path.write_bytes(content)
    path.chmod(mode)
