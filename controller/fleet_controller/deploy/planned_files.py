"""Lists the files, folders and accounts that an installation needs on a host."""

from __future__ import annotations

import hashlib
from pathlib import PurePosixPath

from fleet_controller.deploy.host_commands import (
    FileOwnership,
    HostCommand,
    MakeFolder,
    PutFile,
    RunProgram,
)
from fleet_controller.deploy.host_facts import SYSTEM, USER, Installed, ProbeFacts
from fleet_controller.deploy.install_location import InstallLocation
from fleet_controller.deploy.rendered_files import config_text, unit_text
from fleet_controller.deploy.wanted_install import WantedInstall

# The names that an agent creates in its state folder
STATE_NAMES = ("agent.sock", "artifacts", "journal", "load")


def config_files(wanted: WantedInstall) -> list[PutFile]:
    """Return the files that an agent or its supervisor reads only when it starts."""
    location = wanted.location
    files = [
        PutFile(
            f"{location.config}/agent.toml",
            config_text(location, wanted.host).encode(),
            _readable_by_agent(location),
        )
    ]
    if location.unit:
        return [*files, PutFile(location.unit, unit_text(location, wanted.host).encode())]
    return [
        *files,
        PutFile(f"{location.root}/keeper.py", wanted.keeper.encode(), FileOwnership(0o755)),
    ]


def trust_files(wanted: WantedInstall) -> list[PutFile]:
    """Return the TLS files, which a running agent reloads by itself.

    The key comes before its certificate. An agent that reads the pair between the two writes keeps
    the old pair.
    """
    location, trusted = wanted.location, wanted.trust_files
    readable = _readable_by_agent(location)
    files = [
        PutFile(f"{location.config}/ca.crt", trusted.authorities, readable),
        PutFile(f"{location.config}/revoked.json", trusted.revoked, readable),
    ]
    if trusted.certificate is not None and trusted.key is not None:
        private = FileOwnership(0o600, location.owner if location.mode == SYSTEM else "")
        files.append(PutFile(f"{location.config}/agent.key", trusted.key, private, secret=True))
        files.append(PutFile(f"{location.config}/agent.crt", trusted.certificate, readable))
    return files


def _readable_by_agent(location: InstallLocation) -> FileOwnership:
    """Return the mode of files that only root writes and only the agent reads.

    Without root's rights, one user owns everything.
    """
    return (
        FileOwnership(0o640, location.owner, is_owner=False)
        if location.mode == SYSTEM
        else FileOwnership(0o600)
    )


def differs(file: PutFile, found: Installed) -> bool:
    """Return True if the host lacks the file, or has other content or another mode."""
    placed = found.files.get(file.path)
    return (
        placed is None
        or placed.sha256 != hashlib.sha256(file.content).hexdigest()
        or placed.mode != file.ownership.mode
    )


def account_commands(wanted: WantedInstall, facts: ProbeFacts) -> list[HostCommand]:
    """Return the commands that prepare the agent's user account.

    With root's rights they create the user if needed. In mode user they let the user's services run
    without a login.
    """
    location = wanted.location
    commands: list[HostCommand] = []
    if location.makes_user:
        argv = (
            "useradd",
            "--system",
            "--home-dir",
            location.state,
            "--no-create-home",
            "--shell",
            "/usr/sbin/nologin",
            location.owner,
        )
        hint = f"create the user {location.owner} on the host by hand, or set install.run_as"
        commands.append(RunProgram(argv, undo=("userdel", location.owner), hint=hint))
    if location.mode == USER and not facts.linger:
        hint = (
            f"ask the host's administrator to run `loginctl enable-linger {facts.user}`,"
            " or set install.mode: daemon"
        )
        lingering = ("loginctl", "enable-linger", facts.user)
        commands.append(
            RunProgram(lingering, undo=("loginctl", "disable-linger", facts.user), hint=hint)
        )
    return commands


def folder_commands(wanted: WantedInstall, found: Installed) -> list[MakeFolder]:
    """Return the commands that create the folders which the host lacks, parents first."""
    location = wanted.location
    owner = location.owner if location.mode == SYSTEM else ""
    config = FileOwnership(0o750, owner, is_owner=False) if owner else FileOwnership(0o700)
    folders = [MakeFolder(f"{location.root}/{name}") for name in ("versions", "wheels", "pythons")]
    folders.append(MakeFolder(location.config, config))
    parents = [
        parent
        for parent in reversed(PurePosixPath(location.state).parents)
        if str(parent) not in ("/", location.root)
    ]
    inside = [
        MakeFolder(str(parent)) for parent in parents if str(parent).startswith(f"{location.root}/")
    ]
    folders += [*inside, MakeFolder(location.state, FileOwnership(0o700, owner), STATE_NAMES)]
    if location.mode == USER:
        folders += [
            MakeFolder(str(parent))
            for parent in reversed(PurePosixPath(location.unit).parents)
            if _is_below(parent, location.home)
        ]
    return [folder for folder in folders if folder.path not in found.folders]


def _is_below(path: PurePosixPath, home: str) -> bool:
    return str(path).startswith(home.rstrip("/") + "/")
