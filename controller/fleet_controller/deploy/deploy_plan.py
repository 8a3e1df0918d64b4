"""Owns the decision what is to be done on a host, from its facts, the fleet file and the bundle.
Pure: does and asks nothing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from fleet_controller.core.inventory import FleetHost
from fleet_controller.deploy import host_commands as do
from fleet_controller.deploy.host_commands import FileOwnership, HostCommand, PutFile
from fleet_controller.deploy.host_facts import (
    DAEMON,
    SYSTEM,
    USER,
    HostPython,
    Installed,
    ProbeFacts,
)
from fleet_controller.deploy.install_location import UNIT, InstallLocation
from fleet_controller.deploy.rendered_files import config_text, launcher_text, unit_text
from fleet_controller.deploy.wheel_bundle import Bundle, BundleFile
from fleet_protos.errors import ConfigError

OLDEST_PYTHON, NEWEST_PYTHON = (3, 11), (3, 14)
OWN_NAMES = (
    "versions",
    "wheels",
    "pythons",
    "etc",
    "rollback",
    "current",
    "previous",
)  # what a deploy changes below its root
STATE_NAMES = (
    "agent.sock",
    "artifacts",
    "journal",
    "load",
)  # what an agent makes in its state folder
LAYOUT = 1  # of a version's folder; a change makes all versions anew
_SPARE_BYTES = 64 << 20
_HEALTHY_START_S = 90.0
_COMPILE_S = 300.0
# The agent cannot write beside its program, so what each of its starts reads is compiled here.
# These take half a minute of a core, and
# the process that reads them keeps its bytecode in the state folder.
_NOT_COMPILED = ("ray-", "pyarrow-")


@dataclass(frozen=True, slots=True)
class AgentInterpreter:
    """The Python that an agent runs on: found there at `path`, or brought along as `brought`, whose
    folder is known by its digest.
    """

    version: tuple[int, int, int]
    path: str = ""
    bundled: BundleFile | None = None

    def executable(self, root: str) -> str:
        """Where it is on the host."""
        return f"{root}/pythons/{self.bundled.name}/bin/python3" if self.bundled else self.path


@dataclass(frozen=True, slots=True)
class TrustFiles:
    """Files of trust, PEM. `certificate` None: the one that is installed stays; `key` goes to this
    host only.
    """

    authorities: bytes
    revoked: bytes
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class WantedInstall:
    """All that decides what a host is to look like."""

    host: FleetHost
    location: InstallLocation
    bundle: Bundle
    interpreter: AgentInterpreter
    trust_files: TrustFiles
    keeper: str  # text of the program that keeps an agent alive without systemd
    force: bool = False


@dataclass(frozen=True, slots=True)
class DeployPlan:
    """What is to be done. `commands` empty: the host is as it should be, only its health is asked.
    `version`: the wanted one.
    """

    version: str
    commands: tuple[HostCommand, ...]
    restarts: bool
    notes: tuple[str, ...] = ()


def choose_python(host: FleetHost, facts: ProbeFacts) -> HostPython:
    """The interpreter of the agent there. Raises ConfigError, which names what was found."""
    wanted = host.install.python
    usable = [
        one
        for one in facts.pythons
        if one.usable and OLDEST_PYTHON <= one.version[:2] <= NEWEST_PYTHON
    ]
    if wanted != "auto":
        wanted = facts.home + wanted[1:] if wanted.startswith("~/") else wanted
        usable = [one for one in usable if wanted in (one.path, one.named)]
    everyones = [one for one in usable if not one.path.startswith(("/root/", "/home/"))]
    if usable:
        return (everyones or usable)[0]
    found = (
        ", ".join(f"{one.path} {'.'.join(map(str, one.version))}" for one in facts.pythons)
        or "none"
    )
    hint = "set install.python to an interpreter there that is no virtual environment, or to `bundled`, which brings one along"
    what = (
        "no Python from 3.11 to 3.14 for the agent"
        if wanted == "auto"
        else f"{wanted} is no Python from 3.11 to 3.14 for the agent"
    )
    raise ConfigError(f"host {host.name}: {what} (found: {found})", hint)


def _require_state_outside_programs(wanted: WantedInstall) -> None:
    """A deploy drops versions, wheels and files that it does not need any more: what the agent
    recorded must not lie among them.
    """
    root, state = PurePosixPath(wanted.location.root), PurePosixPath(wanted.location.state)
    below = state.relative_to(root).parts if state.is_relative_to(root) else ("outside",)
    if root.is_relative_to(state) or below[0] in OWN_NAMES:
        what = f"install.state: {state} is among the programs in {root}, where a deploy removes what it does not need"
        raise ConfigError(
            f"host {wanted.host.name}: {what}",
            f"leave it out, or write {root}/state or a folder outside",
        )


def plan_deploy(facts: ProbeFacts, wanted: WantedInstall) -> DeployPlan:
    """From what is there to what is wanted. Raises ConfigError when the host lacks room, or has
    something of others at our place.
    """
    place, found = wanted.location, facts.installed_at(wanted.location.root)
    if found.exists and not found.mode:
        hint = "move it away, or set install.path to another folder"
        raise ConfigError(
            f"host {wanted.host.name}: {place.root} is there and was not made by a deploy", hint
        )
    _require_state_outside_programs(wanted)
    version = version_name(wanted)
    copying = _copy_commands(wanted, found, version)
    files = [file for file in _config_files(wanted) if _differs(file, found)]
    trust = [
        file for file in _trust_files(wanted) if _differs(file, found)
    ]  # the agent reads them anew by itself
    restarts = bool(files) or found.current != version or (found.remembered and not found.restarted)
    before: list[HostCommand] = [
        *_account_commands(wanted, facts),
        *_folder_commands(wanted, found),
    ]
    switching = _switch_commands(wanted, found, version, files) if restarts else []
    starting = _start_commands(wanted) if restarts or not found.active else []
    changes: list[HostCommand] = [*before, *copying, *switching, *trust, *starting]
    ends = bool(changes) or found.remembered
    ending: list[HostCommand] = (
        [
            do.CheckHealth(wanted.host.name, version),
            do.DropRollback(_names_to_keep(wanted, version)),
        ]
        if ends
        else []
    )
    plan = DeployPlan(version, (*changes, *ending), restarts, tuple(_notes(wanted, facts)))
    _require_space(wanted, found, plan)
    return plan


def version_name(wanted: WantedInstall) -> str:
    """The name of a version: changes with every wheel, the interpreter and the layout, and with
    nothing else.
    """
    contents = {
        "layout": LAYOUT,
        "wheels": sorted(item.sha256 for item in wanted.bundle.wheels),
        "python": wanted.interpreter.bundled.sha256
        if wanted.interpreter.bundled
        else wanted.interpreter.path,
        "python_version": wanted.interpreter.version,
        "root": wanted.location.root,
    }
    return (
        f"{wanted.bundle.version}-{hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:16]}"
    )


# What is copied


def _copy_commands(wanted: WantedInstall, found: Installed, version: str) -> list[HostCommand]:
    if version in found.versions:
        return []
    root, python = wanted.location.root, wanted.interpreter.bundled
    commands: list[HostCommand] = []
    if python is not None and python.name not in found.pythons:
        commands.append(
            do.SendWheel(python.name, python.source, python.size, python.sha256, "python")
        )
    missing = [item for item in wanted.bundle.wheels if item.name not in found.wheels]
    commands += [do.SendWheel(item.name, item.source, item.size, item.sha256) for item in missing]
    folders = [
        f"{root}/wheels/{item.name}"
        for item in wanted.bundle.wheels
        if not item.name.startswith(_NOT_COMPILED)
    ]
    if python is not None:
        folders.append(f"{root}/pythons/{python.name}/lib")
    program = wanted.interpreter.executable(root)
    commands.append(
        do.RunProgram((program, "-I", "-m", "compileall", "-q", *folders), timeout_s=_COMPILE_S)
    )
    return [*commands, _make_version(wanted, f"{root}/versions/{version}", version)]


def _make_version(wanted: WantedInstall, folder: str, name: str) -> do.MakeVersion:
    """A virtual environment without copies: one file names the folders of the wheels, so every
    program started with it has them.
    """
    interpreter, root = wanted.interpreter, wanted.location.root
    major, minor, micro = interpreter.version
    executable = interpreter.executable(root)
    wheels = "".join(f"{root}/wheels/{item.name}\n" for item in wanted.bundle.wheels)
    settings = f"home = {PurePosixPath(executable).parent}\ninclude-system-site-packages = false\nversion = {major}.{minor}.{micro}\n"
    files = (
        ("pyvenv.cfg", settings, 0o644),
        (f"lib/python{major}.{minor}/site-packages/benchfleet.pth", wheels, 0o644),
        ("bin/fleet-agent", launcher_text(folder), 0o755),
    )
    return do.MakeVersion(name, files, (("bin/python3", executable), ("bin/python", "python3")))


def _names_to_keep(wanted: WantedInstall, version: str) -> tuple[str, ...]:
    """This version and the one before, with what this one uses; the wheels of the one before are
    kept as long as they are the same.
    """
    python = [wanted.interpreter.bundled.name] if wanted.interpreter.bundled else []
    return (version, *(item.name for item in wanted.bundle.wheels), *python)


def _require_space(wanted: WantedInstall, found: Installed, plan: DeployPlan) -> None:
    sent = [command for command in plan.commands if isinstance(command, do.SendWheel)]
    if not sent:
        return
    brought = {item.name: item.unpacked_bytes for item in wanted.bundle.wheels}
    if wanted.interpreter.bundled:
        brought[wanted.interpreter.bundled.name] = wanted.interpreter.bundled.unpacked_bytes
    needed = (
        sum(brought[command.name] for command in sent)
        + max(command.size for command in sent)
        + _SPARE_BYTES
    )
    if found.free_bytes < needed:
        room = f"{found.free_bytes / 1e6:.0f} MB free, the agent needs {needed / 1e6:.0f} MB"
        message = f"host {wanted.host.name}: {wanted.location.root} has {room}"
        raise ConfigError(
            message, "make room there, or set install.path to a folder on another disk"
        )


# What is written


def _config_files(wanted: WantedInstall) -> list[PutFile]:
    """What an agent or its keeper reads only when it starts."""
    place = wanted.location
    files = [
        PutFile(
            f"{place.config}/agent.toml",
            config_text(place, wanted.host).encode(),
            _readable_by_agent(place),
        )
    ]
    if place.unit:
        return [*files, PutFile(place.unit, unit_text(place, wanted.host).encode())]
    return [
        *files,
        PutFile(f"{place.root}/keeper.py", wanted.keeper.encode(), FileOwnership(0o755)),
    ]


def _trust_files(wanted: WantedInstall) -> list[PutFile]:
    """The key before its certificate: whoever reads the pair in between keeps the one before."""
    place, trusted = wanted.location, wanted.trust_files
    files = [
        PutFile(f"{place.config}/ca.crt", trusted.authorities, _readable_by_agent(place)),
        PutFile(f"{place.config}/revoked.json", trusted.revoked, _readable_by_agent(place)),
    ]
    if trusted.certificate is not None and trusted.key is not None:
        private = FileOwnership(0o600, place.owner if place.mode == SYSTEM else "")
        files.append(PutFile(f"{place.config}/agent.key", trusted.key, private, secret=True))
        files.append(
            PutFile(f"{place.config}/agent.crt", trusted.certificate, _readable_by_agent(place))
        )
    return files


def _readable_by_agent(place: InstallLocation) -> FileOwnership:
    """Root's, and the agent's to read; without root all is one user's."""
    return (
        FileOwnership(0o640, place.owner, is_owner=False)
        if place.mode == SYSTEM
        else FileOwnership(0o600)
    )


def _differs(file: PutFile, found: Installed) -> bool:
    placed = found.files.get(file.path)
    return (
        placed is None
        or placed.sha256 != hashlib.sha256(file.content).hexdigest()
        or placed.mode != file.ownership.mode
    )


def _account_commands(wanted: WantedInstall, facts: ProbeFacts) -> list[HostCommand]:
    place = wanted.location
    commands: list[HostCommand] = []
    if place.makes_user:
        argv = (
            "useradd",
            "--system",
            "--home-dir",
            place.state,
            "--no-create-home",
            "--shell",
            "/usr/sbin/nologin",
            place.owner,
        )
        hint = f"make the user {place.owner} there by hand, or set install.run_as"
        commands.append(do.RunProgram(argv, undo=("userdel", place.owner), hint=hint))
    if place.mode == USER and not facts.linger:
        hint = f"ask its administrator for: loginctl enable-linger {facts.user}; or set install.mode: daemon"
        lingering = ("loginctl", "enable-linger", facts.user)
        commands.append(
            do.RunProgram(lingering, undo=("loginctl", "disable-linger", facts.user), hint=hint)
        )
    return commands


def _folder_commands(wanted: WantedInstall, found: Installed) -> list[do.MakeFolder]:
    place = wanted.location
    owner = place.owner if place.mode == SYSTEM else ""
    config = FileOwnership(0o750, owner, is_owner=False) if owner else FileOwnership(0o700)
    folders = [do.MakeFolder(f"{place.root}/{name}") for name in ("versions", "wheels", "pythons")]
    folders.append(do.MakeFolder(place.config, config))
    parents = [
        parent
        for parent in reversed(PurePosixPath(place.state).parents)
        if str(parent) not in ("/", place.root)
    ]
    inside = [
        do.MakeFolder(str(parent)) for parent in parents if str(parent).startswith(f"{place.root}/")
    ]
    folders += [*inside, do.MakeFolder(place.state, FileOwnership(0o700, owner), STATE_NAMES)]
    if place.mode == USER:
        folders += [
            do.MakeFolder(str(parent))
            for parent in reversed(PurePosixPath(place.unit).parents)
            if _below(parent, place.home)
        ]
    return [folder for folder in folders if folder.path not in found.folders]


def _below(path: PurePosixPath, home: str) -> bool:
    return str(path).startswith(home.rstrip("/") + "/")


# What is switched and started


def _switch_commands(
    wanted: WantedInstall, found: Installed, version: str, files: list[PutFile]
) -> list[HostCommand]:
    place = wanted.location
    commands: list[HostCommand] = []
    if found.current in found.versions and not wanted.force:
        # its own: the new one may not even start
        program = f"{place.root}/versions/{found.current}/bin/fleet-agent"
        commands.append(do.RequireIdle((program, "pending", "--state", place.state)))
    commands.append(do.SaveForRollback(tuple(file.path for file in _config_files(wanted))))
    commands += files
    if found.current not in ("", version):
        commands.append(do.SwitchLink(f"{place.root}/previous", f"versions/{found.current}"))
    commands.append(do.SwitchLink(f"{place.root}/current", f"versions/{version}"))
    return commands


def _start_commands(wanted: WantedInstall) -> list[HostCommand]:
    place = wanted.location
    if place.mode == DAEMON:
        keeper = f"{place.root}/keeper.py"
        python = wanted.interpreter.executable(place.root)
        stopping = do.RunProgram(
            (python, "-I", keeper, "stop", place.root),
            hint=f"look at {place.root}/agent.log",
            timeout_s=150.0,
        )
        return [stopping, do.RunProgram((python, "-I", keeper, "start", place.root), restarts=True)]
    hint = f"look at: {' '.join(place.systemctl('status', UNIT))}"
    enabling = do.RunProgram(
        place.systemctl("enable", "--quiet", UNIT),
        undo=place.systemctl("disable", "--quiet", UNIT),
        hint=hint,
    )
    return [
        do.RunProgram(place.systemctl("daemon-reload"), hint=hint),
        enabling,
        do.RunProgram(
            place.systemctl("restart", UNIT), restarts=True, timeout_s=_HEALTHY_START_S + 120.0
        ),
    ]


def _notes(wanted: WantedInstall, facts: ProbeFacts) -> list[str]:
    place, notes = wanted.location, []
    if place.mode == DAEMON:
        keeper = f"{place.root}/keeper.py"
        start = (
            f"@reboot {wanted.interpreter.executable(place.root)} -I {keeper} start {place.root}"
        )
        notes.append(
            f"no systemd unit, so the agent does not start at boot; for that, crontab -e there, and add: {start}"
        )
        if facts.uid == 0:
            notes.append(
                "the agent and its servers run as root, who deployed them; set `user` to another, who needs no rights there"
            )
    if place.makes_user or place.home == place.state:
        folder = wanted.host.server_python
        if folder.startswith(("/home/", "/root/")):
            notes.append(
                f"the agent runs as {place.owner}, who may not be able to start {folder}: set install.run_as to its owner"
            )
    return notes
