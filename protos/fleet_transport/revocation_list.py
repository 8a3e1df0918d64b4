"""Reads the list of revoked certificates from a file, and reads it again whenever it changes."""

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
    """One revoked certificate. `fingerprint` is the SHA-256 of its DER bytes in hex."""

    fingerprint: str
    role: str
    name: str
    revoked_unix_s: int
    reason: str = ""


def read_revocations(path: Path) -> tuple[Revocation, ...]:
    """Return the list in the file. Empty if there is no file. Raises ConfigError, which names the
    file, if the list cannot be read.
    """
    try:
        return parse_revocations(path.read_bytes())
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}",
            "make this file readable for the user that runs this program",
        ) from error
    except ValueError as error:
        message = f"{path} is not a list of revoked certificates: {error}"
        raise ConfigError(
            message, "restore this file from a backup; on a host, deploy the host again"
        ) from error


def parse_revocations(content: bytes) -> tuple[Revocation, ...]:
    """Return the list in the content of a file. Raises ValueError, which says what is wrong with
    the content.
    """
    try:
        value = json.loads(content)
        if (found := value["version"]) != VERSION:
            raise ValueError(
                f"the list has version {found!r}, but only version {VERSION} is supported"
            )
        return tuple(_parse_revocation(entry) for entry in value["revoked"])
    except KeyError as error:
        raise ValueError(f"{error} is missing") from error
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def revocations_json(entries: Iterable[Revocation]) -> str:
    """Return the content of a file with these entries."""
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
    """Holds the list of revoked certificates and keeps it up to date with its file. If `path` is
    None, no certificate is ever revoked.

    If the file becomes unreadable, the last good list stays in force and one error is logged.
    """

    def __init__(self, path: Path | None) -> None:
        """Read the list. Raises ConfigError if the file exists but cannot be read."""
        self._path = path
        self._stamp = file_stamp(path) if path else None
        self._entries = _by_fingerprint(read_revocations(path) if path else ())

    def find(self, fingerprint: str) -> Revocation | None:
        """Return the revocation of the certificate with this fingerprint. Return None if it was not
        revoked.
        """
        self._refresh()
        return self._entries.get(fingerprint)

    def _refresh(self) -> None:
        if self._path is None or (stamp := file_stamp(self._path)) == self._stamp:
            return
        self._stamp = stamp
        if stamp is None:  # a list only grows, so a missing file was removed by mistake
            log.error(
                "%s is missing: the certificates in it stay revoked until a new file appears",
                self._path,
            )
            return
        try:
            self._entries = _by_fingerprint(read_revocations(self._path))
        except ConfigError as error:
            log.error("%s; the previous list stays in force", error.message)


def _by_fingerprint(entries: Iterable[Revocation]) -> dict[str, Revocation]:
    return {entry.fingerprint: entry for entry in entries}
