"""Keeps an agent running on a host without systemd: restarts it after growing pauses.

    keeper.py start|stop|status|steady ROOT

ROOT/keeper.json identifies the keeper by process id, start time and boot, so that a process that
later gets the same id is never signalled.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

FIRST_PAUSE_S, LAST_PAUSE_S, GOOD_AFTER_S = 1.0, 60.0, 120.0
STOP_S = 100.0  # an agent waits for its servers to stop
LOG_BYTES = 8 << 20


def main() -> int:
    """Run one action. Return 0 if done or running, 1 if failed or not running, 2 for wrong
    arguments.
    """
    if len(sys.argv) != 3 or sys.argv[1] not in ("start", "stop", "status", "steady"):
        log_line(__doc__ or "")
        return 2
    action, root = sys.argv[1], os.path.abspath(sys.argv[2])
    if action == "status":
        return 0 if keeper_pid(root) else 1
    if action == "steady":  # running, and the agent has not ended since its start
        return 0 if keeper_pid(root) and not read_state(root).get("ended") else 1
    if action == "stop":
        return stop(root)
    return start(root)


def start(root: str) -> int:
    """Start a keeper unless one is running. Return after the new keeper has written keeper.json."""
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
    """Run the agent again and again until it exits with 0 or this keeper gets SIGTERM."""
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
        started = time.monotonic()
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
        log_line(f"the agent ended with exit code {code}")
        if stop_signals or code == 0:
            break
        pause_s = (
            FIRST_PAUSE_S
            if time.monotonic() - started > GOOD_AFTER_S
            else min(pause_s * 2, LAST_PAUSE_S)
        )
        log_line(f"restarting the agent in {pause_s:g} s")
        pause_until_signal(pause_s, stop_signals)
    os.unlink(os.path.join(root, "keeper.json"))


def surviving_agent(root: str) -> int:
    """Return the process id of an agent that still runs after its keeper was killed, else 0. This
    keeper then watches that agent.
    """
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
    """Wait until a process that is not our child has ended. Return 1, since its exit code is
    unknown.
    """
    ticks = start_ticks(pid)
    while start_ticks(pid) == ticks != 0:
        time.sleep(0.5)
    return 1


def launch(root: str) -> "subprocess.Popen[bytes] | None":
    """Start the agent, after rotating a large log. Return None if the agent cannot be started."""
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
    """Wait `pause_s` seconds, or until a signal arrives."""
    until = time.monotonic() + pause_s
    while not stop_signals and time.monotonic() < until:
        time.sleep(0.1)


def stop(root: str) -> int:
    """Stop the keeper and its agent. Return 1 if they do not stop in time."""
    pid = keeper_pid(root)
    if not pid:
        return 0
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + STOP_S
    while keeper_pid(root):
        if time.monotonic() > until:
            log_line(f"process {pid} does not stop")
            return 1
        time.sleep(0.05)
    return 0


def write_state(root: str, agent: int, ended: int) -> None:
    """Write keeper.json, which `keeper_pid` and `surviving_agent` read."""
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
    """Return what the newest keeper wrote to keeper.json, or an empty dict without that file."""
    try:
        with open(os.path.join(root, "keeper.json")) as file:
            state: dict[str, Any] = json.load(file)
            return state
    except (OSError, ValueError):
        return {}


def keeper_pid(root: str) -> int:
    """Return the keeper's process id, or 0 if no keeper is running."""
    state = read_state(root)
    pid = int(state.get("pid", 0))
    return (
        pid
        if pid and state.get("boot") == boot_id() and state.get("ticks") == start_ticks(pid) != 0
        else 0
    )


def start_ticks(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot, or 0 if it is gone or a
    zombie.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])


def boot_id() -> str:
    """Return the id of the current boot, in which process ids are valid."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def log_line(text: str) -> None:
    """Write a line with the time to the keeper's log."""
    sys.stdout.write(time.strftime("%Y-%m-%d %H:%M:%S ") + text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
