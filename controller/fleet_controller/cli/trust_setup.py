"""Opens or creates the trust folder of a command, and reports what was created."""

from __future__ import annotations

import argparse
import getpass
import re
from pathlib import Path
from typing import TYPE_CHECKING

from fleet_controller.cli.state_folder import resolve_state_folder
from fleet_controller.pki.trust_path import trust_folder_path

if TYPE_CHECKING:
    from fleet_controller.pki.authority import Authority


def trust_path(arguments: argparse.Namespace) -> Path:
    """Return the trust folder of a command: the folder that `--trust` names, else the default
    folder.
    """
    return trust_folder_path(
        getattr(arguments, "trust", ""), resolve_state_folder(arguments.state).path
    )


def open_authority(arguments: argparse.Namespace) -> Authority:
    """Open the authority in the trust folder. Raises ConfigError when there is none."""
    from fleet_controller.pki.authority import Authority

    return Authority.open(trust_path(arguments))


def ensure_authority(arguments: argparse.Namespace, *, replace: bool = False) -> str:
    """Create the authority unless there is one, and return one line about what was done."""
    from fleet_controller.pki.initialize import init_trust_folder

    folder = trust_path(arguments)
    if init_trust_folder(folder, user_name(), replace=replace):
        return (
            f"created the fleet's authority in {folder}:"
            " keep a backup, and let nobody else read this folder"
        )
    return f"kept the existing authority of the fleet in {folder}"


def user_name() -> str:
    """Return the name of the current user in the characters that a certificate allows, or `me`."""
    try:
        name = re.sub(r"[^A-Za-z0-9._-]", "-", getpass.getuser()).strip("._-")
    except (OSError, KeyError):  # a container without an entry for this user
        name = ""
    return name[:63].rstrip("._-") or "me"


def certificate_count(count: int) -> str:
    """Return `1 certificate` or `N certificates`."""
    return "1 certificate" if count == 1 else f"{count} certificates"
