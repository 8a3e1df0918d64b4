"""The list of revoked certificates as a file, read again whenever it changes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fleet_protos.errors import ConfigError
from fleet_transport.file_stamp import file_stamp

log = logging.getLogger(__name__)

VERSION = 1


@dataclass(frozen=True, slots=True)
class Revocation:
    """One certificate whose trust was withdrawn. `fingerprint` is the SHA-256 of its DER in hex."""

    fingerprint: str
    role: str
    name: str
    revoked_unix_s: int
    reason: str = ""


def read_revocations(path: Path) -> tuple[Revocation, ...]:
    """Return the list in the file, empty without a file. Raises ConfigError, naming the file, if it
    cannot be read.
    """
    try:
        return parse_revocations(path.read_bytes())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}",
            "make it readable for the user that runs this program",
        ) from error
    except ValueError as error:
        message = f"{path} is not a list of revoked certificates: {error}"
        raise ConfigError(
            message, "restore it from a backup; on a host, deploy the host again"
        ) from error


def parse_revocations(content: bytes) -> tuple[Revocation, ...]:
    """Return the list that the content of a file holds. Raises ValueError that says
    what is wrong.
    """
    try:
        value = json.loads(content)
        if value["version"] != VERSION:
            raise ValueError(f"version {value['version']!r}, only version {VERSION} is supported")
        return tuple(_parse_revocation(entry) for entry in value["revoked"])
    except KeyError as error:
        raise ValueError(f"{error} is missing") from error
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def revocations_json(entries: Iterable[Revocation]) -> str:
    """Return the file's content for these entries."""
    return (
        json.dumps({"version": VERSION, "revoked": [asdict(entry) for entry in entries]}, indent=2)
        + "\n"
    )


def _parse_revocation(entry: Mapping[str, Any]) -> Revocation:
    known = {name: entry[name] for name in Revocation.__slots__ if name in entry}
    found = Revocation(**known)
    if (
        not isinstance(found.fingerprint, str)
        or len(bytes.fromhex(found.fingerprint)) != 32
        or not isinstance(found.revoked_unix_s, int)
    ):
        raise ValueError(f"an entry has an invalid fingerprint or date: {found.fingerprint!r}")
    return found


class RevocationList:
    """The list as of the last change of its file. With `path` None, nothing is ever revoked.

    If the file becomes unreadable, the last good list stays in force and one error is logged.
    """

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError if the file exists and cannot be read."""
        self._path = path
        self._stamp = file_stamp(path) if path else None
        self._entries = _by_fingerprint(read_revocations(path) if path else ())

    def find(self, fingerprint: str) -> Revocation | None:
        """Return the revocation of this certificate; None if it was not revoked."""
        self._refresh()
        return self._entries.get(fingerprint)

    def _refresh(self) -> None:
        if self._path is None or (stamp := file_stamp(self._path)) == self._stamp:
            return
        self._stamp = stamp
        if stamp is None:  # a list only grows, so a missing file was removed by mistake
            log.error(
                "%s is missing: what it revoked stays revoked until a new file appears",
                self._path,
            )
            return
        try:
            self._entries = _by_fingerprint(read_revocations(self._path))
        except ConfigError as error:
            log.error("%s; the previous list stays in force", error.message)


def _by_fingerprint(entries: Iterable[Revocation]) -> dict[str, Revocation]:
    return {entry.fingerprint: entry for entry in entries}
