"""Reads a user's SSH configuration, with Host, Match and Include as in OpenSSH.

paramiko parses the text. Lines that would run a command or ask DNS (`Match exec`, canonical names)
are removed before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from paramiko import ConfigParseError, SSHConfig

from fleet_protos.errors import ConfigError

_DEEPEST_INCLUDE = 16  # the limit of OpenSSH
_LINE = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.+?)\s*$")
_NEVER = "Host !*"


class _OfflineSshConfig(SSHConfig):
    """Leaves out the tokens that need a name server: %l, and also %C, which contains %l."""

    TOKENS_BY_CONFIG_KEY = {  # noqa: RUF012 -- overrides paramiko's attribute, which is never written
        "hostname": ["%h"],
        "identityfile": ["~", "%d", "%h", "%r", "%u"],
        "proxyjump": ["%h", "%p", "%r"],
        "userknownhostsfile": ["~", "%d", "%h", "%r", "%u"],
    }


@dataclass(frozen=True, slots=True)
class SshConfig:
    """The SSH configuration of one user.

    - `problem`: why the file could not be read; empty if it could.
    - `ignored`: the keywords that were left out.
    """

    file: str = ""
    problem: str = ""
    ignored: tuple[str, ...] = ()
    _reader: SSHConfig = field(default_factory=SSHConfig, repr=False, compare=False)

    def options_for(self, host: str) -> Mapping[str, str | list[str]]:
        """Return the options for `ssh HOST`, by lower-case keyword. If a keyword has several
        values, the first one counts.

        Raises ConfigError if the user of this process has no name, which the lookup needs.
        """
        if not self.file or self.problem:
            return {}
        try:
            return {
                name: value
                for name, value in self._reader.lookup(host).items()
                if value is not None
            }
        except (KeyError, OSError) as error:
            uid = os.getuid()
            raise ConfigError(
                f"cannot use {self.file}: the current user (uid {uid}) has no name",
                "set $USER",
            ) from error


def user_ssh_config(home: Path | None = None) -> SshConfig:
    """Read ~/.ssh/config, or the same file in the folder `home`. Return an empty configuration if
    there is no file.
    """
    folder = (home or Path.home()) / ".ssh"
    return read_ssh_config(folder / "config")


def read_ssh_config(file: Path) -> SshConfig:
    """Read a configuration file with the files that it includes. Relative file names start at the
    folder of the file.
    """
    ignored: list[str] = []
    try:
        if not file.is_file():
            return SshConfig()
        text = "\n".join(_lines(file, file.parent, ignored, 0))
        reader = _OfflineSshConfig()
        reader.parse(StringIO(text))
    except (OSError, UnicodeDecodeError) as error:
        return SshConfig(str(file), f"the file cannot be read: {error}")
    except (ConfigParseError, ValueError) as error:
        return SshConfig(str(file), f"the file cannot be parsed: {error}")
    return SshConfig(str(file), "", tuple(dict.fromkeys(ignored)), reader)


def _lines(file: Path, folder: Path, ignored: list[str], depth: int) -> Iterator[str]:
    """Yield the lines of the file, with included files inserted.

    After an included file, the Host or Match block that contains the Include continues.
    """
    block = "Host *"
    for line in file.read_text(encoding="utf-8").splitlines():
        match = _LINE.match(line)
        keyword, value = (match[1].lower(), match[2]) if match else ("", "")
        if keyword == "include":
            if depth < _DEEPEST_INCLUDE:
                for included in _included_files(value, folder):
                    yield from _lines(included, folder, ignored, depth + 1)
            yield block
        elif keyword == "match" and re.search(r"(^|[\s!])exec\b", value, re.IGNORECASE):
            ignored.append("Match exec")
            block = _NEVER
            yield block
        elif keyword.startswith("canonical"):
            ignored.append("CanonicalizeHostname")
        elif line.strip() and not line.lstrip().startswith("#"):
            block = line if keyword in ("host", "match") else block
            yield line


def _included_files(value: str, folder: Path) -> Iterator[Path]:
    for pattern in value.replace('"', "").split():
        path = Path(pattern).expanduser()
        yield from sorted(
            found
            for found in (Path("/") if path.is_absolute() else folder).glob(str(path).lstrip("/"))
            if found.is_file()
        )
