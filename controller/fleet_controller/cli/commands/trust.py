"""Owns `fleetctl trust`, `hosts revoke` and init's authority: what is done to the trust folder, and
telling it. Reaches no host.
"""

from __future__ import annotations

import argparse
import getpass
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fleet_controller.cli.state_folder import resolve_state_folder
from fleet_controller.cli.terminal.console import Console
from fleet_controller.pki.trust_path import trust_folder_path
from fleet_protos.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from fleet_controller.pki.authority import Authority


def run(arguments: argparse.Namespace, console: Console) -> int:
    """One action, by name."""
    _check_options(arguments)
    _ACTIONS[arguments.action](arguments, console)
    return ExitCode.DONE


def ensure_authority(arguments: argparse.Namespace, *, replace: bool = False) -> str:
    """Make the authority unless there is one; what was done, in one line."""
    from fleet_controller.pki.initialize import init_trust_folder

    folder = _trust_path(arguments)
    if init_trust_folder(folder, user_name(), replace=replace):
        return (
            f"made the fleet's authority in {folder}: keep a backup of it, and let nobody read it"
        )
    return f"kept the fleet's authority in {folder}"


def revoke_hosts(arguments: argparse.Namespace, console: Console) -> int:
    """`fleetctl hosts revoke HOST…`."""
    if not arguments.hosts:
        raise ConfigError("hosts revoke needs the name of a host", "fleetctl trust show lists them")
    authority = _open_authority(arguments)
    for host in arguments.hosts:
        count = authority.revoke(host, arguments.reason)
        console.print_stderr(
            f"host {host}: {_certificate_count(count)} revoked; the controller speaks to it no more, also a running one"
        )
    console.print_stderr(f"fleetctl deploy {' '.join(arguments.hosts)} would give a new one")
    return ExitCode.DONE


def user_name() -> str:
    """The user of this machine, as a name that a certificate may carry."""
    try:
        name = re.sub(r"[^A-Za-z0-9._-]", "-", getpass.getuser()).strip("._-")
    except (OSError, KeyError):  # a container without an entry for this user
        name = ""
    return name[:63].rstrip("._-") or "me"


def _show(arguments: argparse.Namespace, console: Console) -> None:
    from fleet_controller.report.terminal_layout import table_text
    from fleet_controller.report.trust_output import (
        read_trust_status,
        trust_json,
        trust_notes,
        trust_table,
    )

    trust = read_trust_status(_trust_path(arguments), time.time_ns() // 1_000_000_000)
    if arguments.json:
        console.print_json(trust_json(trust))
        return
    console.print_text(table_text(trust_table(trust), console.width, console.colour))
    console.print_stderr(*trust_notes(trust))


def _issue(arguments: argparse.Namespace, console: Console) -> None:
    if len(arguments.names) != 1 or not arguments.output:
        raise ConfigError(
            "trust issue needs the name of a user and a folder",
            "fleetctl trust issue ann -o ann-trust",
        )
    from fleet_controller.pki import trust_folder as files

    name, folder = arguments.names[0], Path(arguments.output)
    if folder.exists():
        raise ConfigError(
            f"{folder} exists already; nothing was written", "name a folder that does not exist"
        )
    authority = _open_authority(arguments)
    issued = authority.issue_user(name)
    content = {
        "user.key": (issued.key_pem, True), "user.crt": (issued.certificate_pem, False), "ca.crt": (authority.authorities_pem(), False),
    }  # fmt: skip
    files.create_folder(folder.absolute(), content)
    console.print_lines(f"wrote {folder / file}" for file in content)
    console.print_stderr(
        f"copy {folder} to the machine of {name} by a way that nobody else can read, and remove it here",
        f"there: fleetctl ls --controller HOST:PORT --trust {folder.name}, or BENCHFLEET_TRUST",
    )


def _rotate(arguments: argparse.Namespace, console: Console) -> None:
    authority = _open_authority(arguments)
    if arguments.authority:
        _rotate_authority(authority, console)
    elif arguments.names:
        for host in arguments.names:
            authority.request_renewal(host)
        console.print_stderr(
            f"next: fleetctl deploy {' '.join(arguments.names)} brings new certificates; a running agent takes its own at once"
        )
    else:
        authority.renew_controller()
        authority.renew_user(user_name())
        console.print_stderr(
            "the controller and you have new certificates; a running controller takes its own at once"
        )


def _rotate_authority(authority: Authority, console: Console) -> None:
    if authority.is_being_replaced and not authority.hosts_to_redeploy():
        authority.finish_replacing(user_name())
        console.print_stderr(
            "the authority before is dropped; controller and you have certificates of the new one",
            "next: fleetctl deploy, so that the hosts drop it too; other users need a new `fleetctl trust issue`",
        )
        return
    if authority.is_being_replaced:
        authority.finish_replacing(user_name())  # tells which hosts wait
    authority.begin_replacing()
    waiting = authority.hosts_to_redeploy()
    todo = f"fleetctl deploy ({len(waiting)} hosts wait for it), then " if waiting else ""
    console.print_stderr(
        "a new authority issues from now on; both are trusted",
        f"next: {todo}fleetctl trust rotate --authority again",
    )


def _revoke(arguments: argparse.Namespace, console: Console) -> None:
    authority = _open_authority(arguments)
    if arguments.controller:
        console.print_stderr(
            f"the controller: {_certificate_count(authority.revoke_controller(arguments.reason))} revoked, and it has a new one"
        )
        console.print_stderr("next: fleetctl deploy, so that the hosts refuse the one before")
        return
    if not arguments.names:
        raise ConfigError(
            "trust revoke needs the names of users, or --controller",
            "fleetctl hosts revoke is for hosts",
        )
    for name in arguments.names:
        console.print_stderr(
            f"user {name}: {_certificate_count(authority.revoke_user(name, arguments.reason))} revoked, also for a running controller"
        )


def _init(arguments: argparse.Namespace, console: Console) -> None:
    console.print_stderr(ensure_authority(arguments, replace=arguments.force))
    if arguments.force:
        console.print_stderr(
            "next: fleetctl deploy for every host; other users need a new `fleetctl trust issue`"
        )


_ACTIONS = {"show": _show, "issue": _issue, "rotate": _rotate, "revoke": _revoke, "init": _init}
_OPTION_ACTIONS = {
    "output": ("issue",),
    "authority": ("rotate",),
    "controller": ("revoke",),
    "reason": ("revoke",),
    "force": ("init",),
}
_ACTIONS_WITH_NAMES = ("issue", "rotate", "revoke")


def _check_options(arguments: argparse.Namespace) -> None:
    """Raises ConfigError for an option that the action does not take: nothing is ignored in
    silence.
    """
    for option, actions in _OPTION_ACTIONS.items():
        if getattr(arguments, option) and arguments.action not in actions:
            raise ConfigError(
                f"trust {arguments.action} takes no --{option}", f"it goes with trust {actions[0]}"
            )
    if arguments.names and (
        arguments.action not in _ACTIONS_WITH_NAMES or arguments.authority or arguments.controller
    ):
        raise ConfigError(
            f"trust {arguments.action} takes no names here", "leave out the names, or the option"
        )


def _trust_path(arguments: argparse.Namespace) -> Path:
    return trust_folder_path(
        getattr(arguments, "trust", ""), resolve_state_folder(arguments.state).path
    )


def _open_authority(arguments: argparse.Namespace) -> Authority:
    from fleet_controller.pki.authority import Authority

    return Authority.open(_trust_path(arguments))


def _certificate_count(count: int) -> str:
    return "1 certificate" if count == 1 else f"{count} certificates"
