"""Owns the words about faults of a fleet file: which model is where, what to write for what is
missing, no passwords. Checks nothing.
"""

from __future__ import annotations

import re

from fleet_controller.fleet_file import fleet_models as models
from fleet_controller.yaml.file_format import FileFormat, FindingText
from fleet_controller.yaml.key_path import KeyPath

_SECRET_KEY = re.compile(
    r"pass?(word|phrase|wd)|(^|_)secret|private_key|become_pass", re.IGNORECASE
)
_SECTIONS: dict[KeyPath, type[models.HostKeys]] = {
    ("defaults",): models.HostKeys,
    ("groups", "*"): models.Group,
    ("groups", "*", "hosts", "*"): models.Host,
    ("hosts", "*"): models.Host,
}


def _describe_secret_key(path: KeyPath) -> FindingText | None:
    key = str(path[-1])
    if not _SECRET_KEY.search(key):
        return None
    message = (
        f"`{key[:60]}`: no password and no key stands in a fleet file, which is shared and kept"
    )
    if re.search("sudo|become|root", key, re.IGNORECASE):
        hint = "let that user run sudo without one (NOPASSWD), or write `install: {mode: user}`, which needs no sudo"
        return "password_key", message, hint
    return (
        "password_key",
        message,
        "log in by a key (`ssh-copy-id HOST`); load one with a passphrase into the agent (`ssh-add`)",
    )


FLEET_FORMAT = FileFormat(
    noun="the fleet",
    models={
        (): models.FleetFile,
        **_SECTIONS,
        **{(*path, "allow"): models.Allow for path in _SECTIONS},
        **{(*path, "install"): models.Install for path in _SECTIONS},
    },
    missing={
        "apiVersion": "write `apiVersion: benchfleet/v1`",
        "kind": "write `kind: Fleet`",
        "name": "write `name: gpu01`, or `name: gpu[01-16]` for many",
        "hosts": "write `hosts: [gpu01, gpu02]`",
    },
    empty={"groups.*": "write `hosts: [gpu01, gpu02]`, or remove it"},
    names={
        (
            "name",
        ): "small letters, digits and dashes, at most 48, with a letter or digit first and last"
    },
    describe_unknown_key=_describe_secret_key,
)
