"""Reads NCCL's configuration files: what their text sets, and which source of a setting wins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet_knowledge.release import Release, VersionRange

SYSTEM_FILE = "/etc/nccl.conf"
USER_FILE = ".nccl.conf"
"""In the home folder; read only when NCCL_CONF_FILE is not set."""
USER_FILE_VARIABLE = "NCCL_CONF_FILE"
RCCL_FILES = "/etc/rccl.conf", ".rccl.conf"
COMMENT_VERSIONS = VersionRange("2.26")
"""Versions in which a line that starts with `#` is a comment. Older ones set a variable with that
name, which nothing reads."""


@dataclass(frozen=True, slots=True)
class NcclConfFile:
    """A configuration file that exists: its name for messages, and its text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """The value that wins for one setting, its source, and the (source, value) pairs that
    it hides.
    """

    value: str
    source: str
    hidden: tuple[tuple[str, str], ...] = ()


def parse_nccl_conf(text: str) -> dict[str, str]:
    """Return the variables of one file. It has NAME=VALUE lines, in which nothing is trimmed.

    The first line of a name wins. Comments and other lines set nothing.
    """
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.removesuffix("\r").partition("=")
        if equals and not name.startswith("#") and name[:1023]:
            found.setdefault(name[:1023], value[:1023])
    return found


def user_file(env: Mapping[str, str], release: Release | None, home: str) -> str:
    """Return the path of the user's file.

    From 2.23 it is NCCL_CONF_FILE if that is set, with `~` not expanded. Otherwise it is
    HOME/.nccl.conf.
    """
    named = env.get(USER_FILE_VARIABLE, "")
    return (
        named
        if named and VersionRange("2.23").contains(release)
        else f"{home.rstrip('/')}/{USER_FILE}"
    )


def resolve_settings(
    process: Mapping[str, str], *files: NcclConfFile
) -> dict[str, EffectiveSetting]:
    """Return every NCCL_ and RCCL_ variable with the value that NCCL sees.

    The value of the process wins, then that of the first file that sets the variable. Pass the
    user's file before the system's.
    """
    layers = [
        (
            "environment",
            {name: value for name, value in process.items() if name.startswith(("NCCL_", "RCCL_"))},
        )
    ]
    layers.extend((source.name, parse_nccl_conf(source.text)) for source in files)
    settings: dict[str, EffectiveSetting] = {}
    for source, values in layers:
        for name, value in values.items():
            won = settings.get(name)
            settings[name] = (
                EffectiveSetting(won.value, won.source, (*won.hidden, (source, value)))
                if won
                else EffectiveSetting(value, source)
            )
    return settings


def find_misleading_lines(text: str) -> list[tuple[int, str]]:
    """Return (line number, problem) of each line that NCCL reads in another way than it looks.

    Such lines have blanks around `=`, quotes or `export`.
    """
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.removesuffix("\r").partition("=")
        if name.startswith("#") or not line.strip():
            continue
        if not equals:
            found.append((number, "no `=`: the line is skipped"))
        elif name != name.strip() or name.startswith("export"):
            found.append(
                (
                    number,
                    "the name contains blanks or `export`: NCCL sets a variable with that name",
                )
            )
        elif line.endswith("\r"):
            found.append((number, "most versions take the Windows line end as part of the value"))
        elif value != value.strip() or value[:1] in ("'", '"') or "#" in value:
            found.append((number, "NCCL takes blanks, quotes or a comment as part of the value"))
    return found
