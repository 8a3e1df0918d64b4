"""How long files of ended attempts stay on a host: what the controller lacks for ever, what it has
while it fits.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet_agent.storage.artifact_retention import ArtifactRetention

KEY = frozenset({("busy", 1)})


def fill(shelf: ArtifactRetention, trial_id: str, attempt: int = 1, size: int = 8192) -> Path:
    folder = shelf.create_folder(trial_id, attempt)
    (folder / "server").mkdir()
    (folder / "server" / "raw.parquet").write_bytes(bytes(size))
    return folder


def test_what_the_controller_did_not_release_is_never_removed(tmp_path: Path) -> None:
    shelf = ArtifactRetention(tmp_path, kept_bytes=0)
    folders = [fill(shelf, f"t{number}") for number in range(3)]
    shelf.drop_released()
    assert all(folder.exists() for folder in folders)
    assert shelf.unreleased(frozenset({("t1", 1)})) == ["t0/1", "t2/1"]


def test_released_files_stay_while_they_fit_and_the_oldest_go_first(tmp_path: Path) -> None:
    shelf = ArtifactRetention(tmp_path, kept_bytes=20_000)
    folders = [fill(shelf, f"t{number}") for number in range(4)]
    for number in range(4):
        shelf.release(f"t{number}", 1)
        shelf.release(f"t{number}", 1)
    assert [folder.exists() for folder in folders] == [False, False, True, True]
    assert [folder.parent.exists() for folder in folders] == [False, False, True, True]
    shelf.drop_released()
    assert list(tmp_path.iterdir()) == []


def test_an_older_attempt_goes_and_its_newer_one_stays(tmp_path: Path) -> None:
    shelf = ArtifactRetention(tmp_path, kept_bytes=0)
    old, new = fill(shelf, "t", 1), fill(shelf, "t", 2)
    shelf.release("t", 1)
    assert (old.exists(), new.exists()) == (False, True)


@pytest.mark.parametrize("released", [True, False])
def test_what_was_released_is_known_after_a_restart(tmp_path: Path, released: bool) -> None:
    shelf = ArtifactRetention(tmp_path)
    folder = fill(shelf, "t")
    if released:
        shelf.release("t", 1)
    again = ArtifactRetention(tmp_path)
    assert again.unreleased(frozenset()) == ([] if released else ["t/1"])
    again.drop_released()
    assert folder.exists() is not released


def test_releasing_what_is_not_there_is_harmless(tmp_path: Path) -> None:
    shelf = ArtifactRetention(tmp_path / "nothing")
    shelf.release("t", 1)
    assert shelf.unreleased(KEY) == []
