"""Promises of the state folder's lock, between real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fleet_controller.store.file_lock import hold_lock
from fleet_protos.errors import ConfigError, Conflict

HOLD = """
import sys
from pathlib import Path
from fleet_controller.store.file_lock import hold_lock
with hold_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_second_controller_is_refused_with_the_pid_of_the_first_until_that_dies(
    tmp_path: Path,
) -> None:
    lock = tmp_path / "controller" / "controller.lock"
    with subprocess.Popen(
        (sys.executable, "-c", HOLD, str(lock)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(Conflict, match=f"pid {first.pid}"), hold_lock(lock):
            pass
        first.send_signal(signal.SIGKILL)
        first.wait(timeout=10)
        with hold_lock(lock):
            assert lock.read_text() == f"{os.getpid()}\n"


def test_state_folder_that_cannot_be_made_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match="cannot use the state folder"),
        hold_lock(tmp_path / "file" / "controller.lock"),
    ):
        pass
