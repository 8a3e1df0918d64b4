"""Implements `fleetctl trust` with its actions show, issue, rotate, revoke and init."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fleet_controller.cli.terminal.console import Console
from fleet_controller.cli.trust_setup import (
    certificate_count,
    ensure_authority,
    open_authority,
    trust_path,
    user_name,
)
from fleet_protos.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from fleet_controller.pki.authority import Authority


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the action of `arguments`. Raises ConfigError for options that do not belong to it."""
    _check_options(arguments)
    _ACTIONS[arguments.action](arguments, console)
    return ExitCode.DONE


def _show(arguments: argparse.Namespace, console: Console) -> None:
    from fleet_controller.pki.trust_status import read_trust_status
    from fleet_controller.report.terminal_layout import table_text
    from fleet_controller.report.trust_output import trust_json, trust_notes, trust_table

    trust = read_trust_status(trust_path(arguments), time.time_ns() // 1_000_000_000)
    if arguments.json:
        console.print_json(trust_json(trust))
        return
    console.print_text(table_text(trust_table(trust), console.width, console.colour))
    console.print_stderr(*trust_notes(trust))


def _issue(arguments: argparse.Namespace, console: Console) -> None:
    if len(arguments.names) != 1 or not arguments.output:
        raise ConfigError(
            "trust issue needs the name of one user and a folder to write",
            "for example: fleetctl trust issue ann -o ann-trust",
        )
    from fleet_controller.pki import trust_folder as files

    name, folder = arguments.names[0], Path(arguments.output)
    if folder.exists():
        raise ConfigError(
            f"{folder} exists already; nothing was written", "name a folder that does not exist"
        )
    authority = open_authority(arguments)
    issued = authority.issue_user(name)
    content = {
        "user.key": (issued.key_pem, True),
        "user.crt": (issued.certificate_pem, False),
        "ca.crt": (authority.authorities_pem(), False),
    }
    files.create_folder(folder.absolute(), content)
    console.print_lines(f"wrote {folder / file}" for file in content)
    console.print_stderr(
        f"copy {folder} to the machine of {name} over a channel that nobody else can read,"
        " then remove it here",
        f"on that machine: fleetctl ls --controller HOST:PORT --trust {folder.name}"
        " (or set BENCHFLEET_TRUST)",
    )


def _rotate(arguments: argparse.Namespace, console: Console) -> None:
    authority = open_authority(arguments)
    if arguments.authority:
        _rotate_authority(authority, console)
    elif arguments.names:
        for host in arguments.names:
            authority.request_renewal(host)
        hosts = " ".join(arguments.names)
        console.print_stderr(
            f"next: `fleetctl deploy {hosts}` installs new certificates;"
            " running agents start to use them at once"
        )
    else:
        authority.renew_controller()
        authority.renew_user(user_name())
        console.print_stderr(
            "the controller and you have new certificates;"
            " a running controller starts to use its new certificate at once"
        )


def _rotate_authority(authority: Authority, console: Console) -> None:
    if authority.is_being_replaced:
        authority.finish_replacing(user_name())  # raises Conflict, which names the waiting hosts
        console.print_stderr(
            "the previous authority is no longer trusted;"
            " the controller and you have certificates of the new authority",
            "next: run `fleetctl deploy`, so that the hosts stop trusting the previous authority;"
            " other users need a new `fleetctl trust issue`",
        )
        return
    authority.begin_replacing()
    waiting = len(authority.hosts_to_redeploy())
    todo = f"run `fleetctl deploy` ({waiting} hosts wait for it), then " if waiting else ""
    console.print_stderr(
        "a new authority issues all certificates from now on; both authorities are trusted",
        f"next: {todo}run `fleetctl trust rotate --authority` again",
    )


def _revoke(arguments: argparse.Namespace, console: Console) -> None:
    authority = open_authority(arguments)
    if arguments.controller:
        certificates = certificate_count(authority.revoke_controller(arguments.reason))
        console.print_stderr(
            f"the controller: {certificates} revoked; it has a new certificate now",
            "next: run `fleetctl deploy`, so that the hosts refuse the revoked certificates",
        )
        return
    if not arguments.names:
        raise ConfigError(
            "trust revoke needs the names of users, or --controller",
            "for hosts, use `fleetctl hosts revoke`",
        )
    for name in arguments.names:
        certificates = certificate_count(authority.revoke_user(name, arguments.reason))
        console.print_stderr(f"user {name}: {certificates} revoked; this takes effect at once")


def _init(arguments: argparse.Namespace, console: Console) -> None:
    console.print_stderr(ensure_authority(arguments, replace=arguments.force))
    if arguments.force:
        console.print_stderr(
            "next: run `fleetctl deploy` for every host;"
            " other users need a new `fleetctl trust issue`"
        )


_ACTIONS = {"show": _show, "issue": _issue, "rotate": _rotate, "revoke": _revoke, "init": _init}
_OPTION_ACTIONS = {
    "output": "issue",
    "authority": "rotate",
    "controller": "revoke",
    "reason": "revoke",
    "force": "init",
}
_ACTIONS_WITH_NAMES = ("issue", "rotate", "revoke")


def _check_options(arguments: argparse.Namespace) -> None:
    """Raise ConfigError for an option or a name that the action does not use."""
    for option, action in _OPTION_ACTIONS.items():
        if getattr(arguments, option) and arguments.action != action:
            raise ConfigError(
                f"trust {arguments.action} takes no --{option}",
                f"the option belongs to `fleetctl trust {action}`",
            )
    if arguments.names and (
        arguments.action not in _ACTIONS_WITH_NAMES or arguments.authority or arguments.controller
    ):
        raise ConfigError(
            f"trust {arguments.action} takes no names here",
            "leave out the names, --authority or --controller",
        )
