"""Keeps the list of everything that deploys made for an installation."""

import json
import os
from typing import Any

from fleet_controller.deploy.remote.atomic_files import (
    UNFINISHED_SUFFIX,
    sync_folder,
    write_synced,
)

MADE_LIST = "made.jsonl"


class MadeList:
    """The list in ROOT/made.jsonl. An entry is on disk before the thing that it names is made."""

    def __init__(self, root: str) -> None:
        self.path = os.path.join(root, MADE_LIST)
        self.entries: list[dict[str, Any]] = read_list(self.path) if root else []

    def record(self, entry: "dict[str, Any]") -> None:
        """Append an entry and flush it to disk, unless it is already in the list."""
        if entry in self.entries:
            return
        line = json.dumps(entry) + "\n"
        with open(self.path, "rb+") as file:
            content = file.read()
            file.write(
                line.encode() if content.endswith(b"\n") or not content else b"\n" + line.encode()
            )
            file.flush()
            os.fsync(file.fileno())
        self.entries.append(entry)

    def has_path(self, path: str) -> bool:
        """Return True if a deploy made `path`."""
        return any(entry.get("path") == path for entry in self.entries)

    def rewrite(self, entries: "list[dict[str, Any]]") -> None:
        """Replace the list atomically."""
        if entries == self.entries:
            return
        write_synced(self.path + UNFINISHED_SUFFIX, list_content(entries), 0o644)
        os.rename(self.path + UNFINISHED_SUFFIX, self.path)
        sync_folder(os.path.dirname(self.path))
        self.entries = entries


def list_content(entries: "list[dict[str, Any]]") -> bytes:
    """Return the content of a list with these entries."""
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


def read_list(path: str) -> "list[dict[str, Any]]":
    """Return the entries of a list. A line that was cut off is skipped, because nothing was made
    for it yet.
    """
    entries = []
    with open(path) as file:
        for line in file:
            try:
                entries.append(json.loads(line))
            except ValueError:
                continue
    return entries
