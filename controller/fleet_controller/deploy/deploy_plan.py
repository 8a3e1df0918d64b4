"""Plans what to do on a host, from its facts, the fleet file and the wheels."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import PurePosixPath

from fleet_controller.deploy.host_commands import (
    CheckHealth,
    DropRollback,
    HostCommand,
    MakeVersion,
    PutFile,
    RequireIdle,
    RunProgram,
    SaveForRollback,
    SendWheel,
    SwitchLink,
)
from fleet_controller.deploy.host_facts import DAEMON, Installed, ProbeFacts
from fleet_controller.deploy.install_location import UNIT
from fleet_controller.deploy.planned_files import (
    account_commands,
    config_files,
    differs,
    folder_commands,
    trust_files,
)
from fleet_controller.deploy.rendered_files import launcher_text
from fleet_controller.deploy.wanted_install import WantedInstall
from fleet_protos.errors import ConfigError

# The names below its root that a deploy changes
OWN_NAMES = ("versions", "wheels", "pythons", "etc", "rollback", "current", "previous")
LAYOUT = 1  # of a version's folder; another number gives every version a new name
_SPARE_BYTES = 64 << 20
_HEALTHY_START_S = 90.0
_COMPILE_S = 300.0
# The agent cannot write into its program's folders, so a deploy compiles the bytecode that every
# start reads. These two take half a minute of a core; the process that imports them keeps its
# bytecode in the state folder.
_NOT_COMPILED = ("ray-", "pyarrow-")


@dataclass(frozen=True, slots=True)
class DeployPlan:
    """Says what to do on a host to get to `version`.

    `commands` is empty when nothing has to change. In that case only the agent's health is checked.
    """

    version: str
    commands: tuple[HostCommand, ...]
    restarts: bool
    notes: tuple[str, ...] = ()


def plan_deploy(facts: ProbeFacts, wanted: WantedInstall) -> DeployPlan:
    """Plan the way from the state that the probe found to the wanted state.

    Raises ConfigError when the host has too little free space, or when the root of the installation
    has files that no deploy made.
    """
    location, found = wanted.location, facts.installed_at(wanted.location.root)
    if found.exists and not found.mode:
        raise ConfigError(
            f"host {wanted.host.name}: {location.root} exists and was not made by a deploy",
            "move it away, or set install.path to another folder",
        )
    _require_state_outside_programs(wanted)
    version = version_name(wanted)
    copying = _copy_commands(wanted, found, version)
    files = [file for file in config_files(wanted) if differs(file, found)]
    trust = [file for file in trust_files(wanted) if differs(file, found)]
    restarts = bool(files) or found.current != version or (found.remembered and not found.restarted)
    before: list[HostCommand] = [
        *account_commands(wanted, facts),
        *folder_commands(wanted, found),
    ]
    switching = _switch_commands(wanted, found, version, files) if restarts else []
    starting = _start_commands(wanted) if restarts or not found.active else []
    changes: list[HostCommand] = [*before, *copying, *switching, *trust, *starting]
    ending: list[HostCommand] = (
        [CheckHealth(wanted.host.name, version), DropRollback(_names_to_keep(wanted, version))]
        if changes or found.remembered
        else []
    )
    plan = DeployPlan(version, (*changes, *ending), restarts, tuple(_notes(wanted, facts)))
    _require_space(wanted, found, plan)
    return plan


def _require_state_outside_programs(wanted: WantedInstall) -> None:
    """Raise ConfigError if the agent's records would be in a folder that a deploy cleans up."""
    root, state = PurePosixPath(wanted.location.root), PurePosixPath(wanted.location.state)
    below = state.relative_to(root).parts if state.is_relative_to(root) else ("outside",)
    if root.is_relative_to(state) or below[0] in OWN_NAMES:
        raise ConfigError(
            f"host {wanted.host.name}: install.state: {state} overlaps with the programs in {root},"
            " and a deploy removes programs that it no longer needs",
            f"leave install.state out, or set it to {root}/state or a folder outside {root}",
        )


def version_name(wanted: WantedInstall) -> str:
    """Return the name of a version, which depends on the wheels, the interpreter and the layout."""
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


def _copy_commands(wanted: WantedInstall, found: Installed, version: str) -> list[HostCommand]:
    if version in found.versions:
        return []
    root, python = wanted.location.root, wanted.interpreter.bundled
    commands: list[HostCommand] = []
    if python is not None and python.name not in found.pythons:
        commands.append(SendWheel(python.name, python.source, python.size, python.sha256, "python"))
    missing = [item for item in wanted.bundle.wheels if item.name not in found.wheels]
    commands += [SendWheel(item.name, item.source, item.size, item.sha256) for item in missing]
    folders = [
        f"{root}/wheels/{item.name}"
        for item in wanted.bundle.wheels
        if not item.name.startswith(_NOT_COMPILED)
    ]
    if python is not None:
        folders.append(f"{root}/pythons/{python.name}/lib")
    program = wanted.interpreter.executable(root)
    commands.append(
        RunProgram((program, "-I", "-m", "compileall", "-q", *folders), timeout_s=_COMPILE_S)
    )
    return [*commands, _make_version(wanted, f"{root}/versions/{version}", version)]


def _make_version(wanted: WantedInstall, folder: str, name: str) -> MakeVersion:
    """Return the command that makes a virtual environment, in which no wheel is copied.

    A .pth file names the folders of the wheels, so every program of the environment finds them.
    """
    interpreter, root = wanted.interpreter, wanted.location.root
    major, minor, micro = interpreter.version
    executable = interpreter.executable(root)
    wheels = "".join(f"{root}/wheels/{item.name}\n" for item in wanted.bundle.wheels)
    settings = (
        f"home = {PurePosixPath(executable).parent}\n"
        "include-system-site-packages = false\n"
        f"version = {major}.{minor}.{micro}\n"
    )
    files = (
        ("pyvenv.cfg", settings, 0o644),
        (f"lib/python{major}.{minor}/site-packages/benchfleet.pth", wheels, 0o644),
        ("bin/fleet-agent", launcher_text(folder), 0o755),
    )
    return MakeVersion(name, files, (("bin/python3", executable), ("bin/python", "python3")))


def _names_to_keep(wanted: WantedInstall, version: str) -> tuple[str, ...]:
    """Return the names of this version, of its wheels and of its Python. The installer adds the
    names that the previous version uses.
    """
    python = [wanted.interpreter.bundled.name] if wanted.interpreter.bundled else []
    return (version, *(item.name for item in wanted.bundle.wheels), *python)


def _require_space(wanted: WantedInstall, found: Installed, plan: DeployPlan) -> None:
    sent = [command for command in plan.commands if isinstance(command, SendWheel)]
    if not sent:
        return
    unpacked = {item.name: item.unpacked_bytes for item in wanted.bundle.wheels}
    if wanted.interpreter.bundled:
        unpacked[wanted.interpreter.bundled.name] = wanted.interpreter.bundled.unpacked_bytes
    needed = (
        sum(unpacked[command.name] for command in sent)
        + max(command.size for command in sent)
        + _SPARE_BYTES
    )
    if found.free_bytes < needed:
        free_mb, needed_mb = found.free_bytes / 1e6, needed / 1e6
        raise ConfigError(
            f"host {wanted.host.name}: {wanted.location.root} has {free_mb:.0f} MB free,"
            f" but the agent needs {needed_mb:.0f} MB",
            "free some space there, or set install.path to a folder on another disk",
        )


def _switch_commands(
    wanted: WantedInstall, found: Installed, version: str, files: list[PutFile]
) -> list[HostCommand]:
    location = wanted.location
    commands: list[HostCommand] = []
    if found.current in found.versions and not wanted.force:
        # The installed program reads its own journal: the new one might not even start.
        program = f"{location.root}/versions/{found.current}/bin/fleet-agent"
        commands.append(RequireIdle((program, "pending", "--state", location.state)))
    commands.append(SaveForRollback(tuple(file.path for file in config_files(wanted))))
    commands += files
    if found.current not in ("", version):
        commands.append(SwitchLink(f"{location.root}/previous", f"versions/{found.current}"))
    commands.append(SwitchLink(f"{location.root}/current", f"versions/{version}"))
    return commands


def _start_commands(wanted: WantedInstall) -> list[HostCommand]:
    location = wanted.location
    if location.mode == DAEMON:
        keeper = f"{location.root}/keeper.py"
        python = wanted.interpreter.executable(location.root)
        stopping = RunProgram(
            (python, "-I", keeper, "stop", location.root),
            hint=f"see {location.root}/agent.log on the host",
            timeout_s=150.0,
        )
        return [stopping, RunProgram((python, "-I", keeper, "start", location.root), restarts=True)]
    status_command = " ".join(location.systemctl("status", UNIT))
    hint = f"run on the host: {status_command}"
    enabling = RunProgram(
        location.systemctl("enable", "--quiet", UNIT),
        undo=location.systemctl("disable", "--quiet", UNIT),
        hint=hint,
    )
    return [
        RunProgram(location.systemctl("daemon-reload"), hint=hint),
        enabling,
        RunProgram(
            location.systemctl("restart", UNIT), restarts=True, timeout_s=_HEALTHY_START_S + 120.0
        ),
    ]


def _notes(wanted: WantedInstall, facts: ProbeFacts) -> list[str]:
    location, notes = wanted.location, []
    if location.mode == DAEMON:
        python, keeper = wanted.interpreter.executable(location.root), f"{location.root}/keeper.py"
        notes.append(
            "there is no systemd unit, so the agent does not start at boot; to start it at boot,"
            f" run crontab -e on the host and add: @reboot {python} -I {keeper} start"
            f" {location.root}"
        )
        if facts.uid == 0:
            notes.append(
                "the agent and its servers run as root, because root deployed them;"
                " set `user` to another user, who needs no special rights on the host"
            )
    if location.makes_user or location.home == location.state:
        program = wanted.host.server_python
        if program.startswith(("/home/", "/root/")):
            notes.append(
                f"the agent runs as {location.owner}, who may not be able to start {program}:"
                " set install.run_as to the owner of that file"
            )
    return notes
