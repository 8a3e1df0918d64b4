"""Saves the files and links that a switch to a new version replaces, and restores them."""

import json
import os
import shutil
from typing import Any

from fleet_controller.deploy.remote.atomic_files import (
    UNFINISHED_SUFFIX,
    switch_link,
    sync_folder,
    write_synced,
)
from fleet_controller.deploy.remote.file_trees import remove_tree

LINKS = ("current", "previous")


def save_for_rollback(root: str, paths: "list[str]") -> None:
    """Save `paths` and the version links of an installation in ROOT/rollback.

    If an interrupted switch has already saved files, those are older. They are kept, and nothing is
    saved.
    """
    folder = os.path.join(root, "rollback")
    if os.path.isfile(os.path.join(folder, "remembered.json")):
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.mkdir(folder, 0o700)
    kept = []
    for number, path in enumerate(paths):
        if os.path.isfile(path):
            status = os.stat(path)
            with open(path, "rb") as file:
                write_synced(os.path.join(folder, str(number)), file.read(), 0o600)
            kept.append([path, number, status.st_mode & 0o7777, status.st_uid, status.st_gid])
    state: dict[str, Any] = {name: read_link(os.path.join(root, name)) for name in LINKS}
    state["files"] = kept
    write_synced(os.path.join(folder, "remembered.json"), json.dumps(state).encode(), 0o600)
    sync_folder(folder)


def restore_saved(root: str) -> str:
    """Restore what was saved. Return the target of the link `current`, or an empty text without a
    previous version.
    """
    folder = os.path.join(root, "rollback")
    with open(os.path.join(folder, "remembered.json")) as file:
        state = json.load(file)
    for path, number, mode, uid, gid in state["files"]:
        with open(os.path.join(folder, str(number)), "rb") as saved:
            write_synced(path + UNFINISHED_SUFFIX, saved.read(), mode)
        os.chown(path + UNFINISHED_SUFFIX, uid, gid)
        os.rename(path + UNFINISHED_SUFFIX, path)
    for name in LINKS:
        link = os.path.join(root, name)
        if state[name]:
            switch_link(link, state[name])
        elif os.path.islink(link):
            os.unlink(link)
    remove_tree(folder)
    current: str = state["current"]
    return current


def read_link(path: str) -> str:
    """Return a link's target, or an empty text if there is no link."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
