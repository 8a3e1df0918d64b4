"""Runs programs on a host with a time limit."""

import os
import signal
import subprocess


def run_program(argv: "list[str]", timeout_s: float) -> "tuple[int, str, str]":
    """Run a program in a session of its own and return (exit code, output, errors).

    The exit code is 124 after `timeout_s`. It is 127 if the program cannot be started.
    """
    environment = dict(os.environ, LC_ALL="C.UTF-8")
    # Where no PAM sets it, systemctl --user needs this variable.
    environment.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return 127, "", f"{argv[0]}: {error.strerror}"
    try:
        out, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return 124, "", f"the program did not end within {timeout_s:g} s"
    return (
        process.returncode,
        out.decode(errors="replace")[-65536:],
        errors.decode(errors="replace")[-65536:],
    )


def run_undo(argv: "list[str]") -> "list[str]":
    """Run the program that undoes another program. Return its error if it fails."""
    code, _, error = run_program(argv, 60.0)
    return [f"{' '.join(argv)}: {error.strip()[-200:]}"] if code != 0 else []
