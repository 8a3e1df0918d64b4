"""Describes the keys of the fleet file: the model at each path, what to write where a key is
missing, and what to do instead of writing a password.
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
        f"`{key[:60]}`: a fleet file is shared and kept, so it must not contain passwords or keys"
    )
    if re.search("sudo|become|root", key, re.IGNORECASE):
        hint = (
            "let the user run sudo without a password (NOPASSWD), or write `install: {mode: "
            "user}`, which needs no sudo"
        )
        return "password_key", message, hint
    return (
        "password_key",
        message,
        (
            "log in with a key (`ssh-copy-id HOST`); add a key with a passphrase to ssh-agent "
            "(`ssh-add`)"
        ),
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
        "name": "write `name: gpu01`, or `name: gpu[01-16]` for several hosts",
        "hosts": "write `hosts: [gpu01, gpu02]`",
    },
    empty={"groups.*": "write `hosts: [gpu01, gpu02]`, or remove the group"},
    names={
        ("name",): (
            "use at most 48 lower-case letters, digits and dashes, with a letter or digit at both "
            "ends"
        )
    },
    describe_unknown_key=_describe_secret_key,
)
