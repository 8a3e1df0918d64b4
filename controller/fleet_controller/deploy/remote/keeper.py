"""Owns keeping an agent alive on a host without systemd: starts it again with growing pauses, ends
it when told. Python 3.6 and newer.

    keeper.py start|stop|status|steady ROOT

ROOT/keeper.json names the keeper by process id, start time and boot, so that an id that was given
to another process is never signalled.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

FIRST_PAUSE_S, LAST_PAUSE_S, GOOD_AFTER_S = 1.0, 60.0, 120.0
STOP_S = 100.0  # an agent gives its servers their time to end
LOG_BYTES = 8 << 20


def main() -> int:
    """0: done or running, 1: not running, 2: wrong use."""
    if len(sys.argv) != 3 or sys.argv[1] not in ("start", "stop", "status", "steady"):
        log_line(__doc__ or "")
        return 2
    action, root = sys.argv[1], os.path.abspath(sys.argv[2])
    if action == "status":
        return 0 if keeper_pid(root) else 1
    if action == "steady":  # and the agent has not ended since it was started
        return 0 if keeper_pid(root) and not read_state(root).get("ended") else 1
    if action == "stop":
        return stop(root)
    return start(root)


def start(root: str) -> int:
    """Start a keeper unless one runs; returns once it is on record."""
    if keeper_pid(root):
        return 0
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        os.waitpid(child, 0)
        return 0 if os.read(reader, 1) else 1
    os.setsid()
    if os.fork():
        os._exit(0)
    os.close(reader)
    os.chdir("/")
    log = os.open(os.path.join(root, "keeper.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    write_state(root, surviving_agent(root), 0)
    os.write(writer, b"1")
    os.close(writer)
    supervise(root)
    os._exit(0)


def supervise(root: str) -> None:
    """Run the agent until it ends well or we are told to end."""
    stop_signals: list[int] = []
    pid, ended = surviving_agent(root), 0

    def end(number: int, _frame: Any) -> None:
        stop_signals.append(number)
        if pid:
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    pause_s = FIRST_PAUSE_S
    while not stop_signals:
        began = time.monotonic()
        code = wait_for_exit(pid) if pid else 1
        if not pid:
            process = launch(root)
            pid = process.pid if process else 0
            write_state(root, pid, ended)
            if stop_signals and process:
                process.terminate()
            code = process.wait() if process else 1
        pid, ended = 0, ended + 1
        write_state(root, 0, ended)
        log_line(f"the agent ended with {code}")
        if stop_signals or code == 0:
            break
        pause_s = (
            FIRST_PAUSE_S
            if time.monotonic() - began > GOOD_AFTER_S
            else min(pause_s * 2, LAST_PAUSE_S)
        )
        log_line(f"starting it again in {pause_s:g} s")
        pause_until_signal(pause_s, stop_signals)
    os.unlink(os.path.join(root, "keeper.json"))


def surviving_agent(root: str) -> int:
    """The agent of a keeper that was killed: it works on, and is kept by this one."""
    state = read_state(root)
    pid = int(state.get("agent", 0))
    return (
        pid
        if pid
        and state.get("boot") == boot_id()
        and state.get("agent_ticks") == start_ticks(pid) != 0
        else 0
    )


def wait_for_exit(pid: int) -> int:
    """Wait for a process that is no child of ours; its exit code is not ours to know."""
    began = start_ticks(pid)
    while start_ticks(pid) == began != 0:
        time.sleep(0.5)
    return 1


def launch(root: str) -> "subprocess.Popen[bytes] | None":
    """The agent, its log kept short; None when it cannot be started."""
    path = os.path.join(root, "agent.log")
    if os.path.exists(path) and os.path.getsize(path) > LOG_BYTES:
        os.rename(path, path + ".1")
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    argv = [
        os.path.join(root, "current", "bin", "fleet-agent"),
        "--config",
        os.path.join(root, "etc", "agent.toml"),
    ]
    try:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    except OSError as error:
        log_line(f"{argv[0]}: {error.strerror}")
        return None
    finally:
        os.close(log)


def pause_until_signal(pause_s: float, stop_signals: "list[int]") -> None:
    """A pause that a signal ends."""
    until = time.monotonic() + pause_s
    while not stop_signals and time.monotonic() < until:
        time.sleep(0.1)


def stop(root: str) -> int:
    """End the keeper and its agent; 1 when they do not end in time."""
    pid = keeper_pid(root)
    if not pid:
        return 0
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + STOP_S
    while keeper_pid(root):
        if time.monotonic() > until:
            log_line(f"process {pid} does not end")
            return 1
        time.sleep(0.05)
    return 0


def write_state(root: str, agent: int, ended: int) -> None:
    """Who keeps whom: read by `running` and `agent_left`."""
    path = os.path.join(root, "keeper.json")
    state = {
        "pid": os.getpid(),
        "ticks": start_ticks(os.getpid()),
        "boot": boot_id(),
        "agent": agent,
        "agent_ticks": start_ticks(agent),
        "ended": ended,
    }
    with open(path + ".new", "w") as file:
        json.dump(state, file)
    os.rename(path + ".new", path)


def read_state(root: str) -> "dict[str, Any]":
    """What the newest keeper wrote down; empty when there is none."""
    try:
        with open(os.path.join(root, "keeper.json")) as file:
            state: dict[str, Any] = json.load(file)
            return state
    except (OSError, ValueError):
        return {}


def keeper_pid(root: str) -> int:
    """The keeper's process id, 0 when none runs."""
    state = read_state(root)
    pid = int(state.get("pid", 0))
    return (
        pid
        if pid and state.get("boot") == boot_id() and state.get("ticks") == start_ticks(pid) != 0
        else 0
    )


def start_ticks(pid: int) -> int:
    """When a process began, in clock ticks since boot; 0 when it is gone or only its exit code is
    left.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def boot_id() -> str:
    """Of which boot the process ids are."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def log_line(text: str) -> None:
    """To the keeper's log, with the time."""
    sys.stdout.write(time.strftime("%Y-%m-%d %H:%M:%S ") + text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
