"""Reads the facts of a host and what deploys have installed there. Changes nothing.

The starter program sets `ASKED`: `{"roots": [[root, state], …], "users": [name, …], "python": a
path or empty, "sudo": true|false, "source": this text}`.
"""

import glob
import hashlib
import json
import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
from typing import Any

STARTER = (
    "import json,sys;a=json.loads(sys.stdin.readline());"
    "exec(compile(a['source'],'probe','exec'),{'__name__':'probe','ASKED':a})"
)
MAX_FILE_BYTES = 1 << 20
PYTHONS = ["python3", "/usr/bin/python3", "/usr/local/bin/python3"] + [
    f"python3.{minor}" for minor in (13, 12, 11, 14)
]
ASK_PYTHON = (
    "import json,sys,sysconfig;print(json.dumps([list(sys.version_info[:3]),"
    "sys.implementation.name,sys.base_prefix!=sys.prefix,"
    "sysconfig.get_config_var('Py_GIL_DISABLED') or 0,sys.executable]))"
)


def main(request: "dict[str, Any]") -> None:
    """Write the facts to standard output as one JSON object."""
    if request.get("only_installed"):
        sys.stdout.write(json.dumps(describe_installs(request["roots"])))
        return
    about = describe_host(request)
    about["users"] = {name: describe_user(name) for name in request["users"]}
    about["installed"] = describe_installs(request["roots"])
    about["sudo"] = False
    if about["uid"] != 0 and request["sudo"]:
        as_root = probe_as_root(request)
        about["sudo"] = as_root is not None
        about["installed"] = as_root if as_root is not None else about["installed"]
    sys.stdout.write(json.dumps(about))


def run(argv: "list[str]", timeout_s: float = 5.0, given: str = "") -> "tuple[int, str]":
    """Run a program and return its exit code and output. The code is 127 if the program is missing,
    124 after a timeout.
    """
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return 127, ""
    try:
        output, _ = process.communicate(given.encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return 124, ""
    return process.returncode, output.decode(errors="replace").strip()


def read_or_empty(path: str) -> str:
    """Return the text of a small file, or an empty text if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""


def probe_as_root(request: "dict[str, Any]") -> "list[dict[str, Any]] | None":
    """Return the installations that root sees, or None if sudo is missing or asks for a
    password.
    """
    roots = [[os.path.expanduser(path) for path in pair] for pair in request["roots"]]
    question = json.dumps({"only_installed": True, "roots": roots, "source": request["source"]})
    code, output = run(
        ["sudo", "-n", "--", sys.executable, "-I", "-c", STARTER], 10.0, question + "\n"
    )
    try:
        seen: list[dict[str, Any]] = json.loads(output)
    except ValueError:
        return None
    return seen if code == 0 else None


def describe_host(request: "dict[str, Any]") -> "dict[str, Any]":
    """Return the facts of the machine and of the user that the probe runs as."""
    uid = os.getuid()
    me = pwd.getpwuid(uid)
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}"
    return {
        "uid": uid,
        "user": me.pw_name,
        "home": me.pw_dir,
        "system": dict(
            re.findall(
                r'^(ID|VERSION_ID|PRETTY_NAME)="?([^"\n]*)', read_or_empty("/etc/os-release"), re.M
            )
        ),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": libc(),
        "pythons": find_pythons(os.path.expanduser(request["python"])),
        "systemd": os.path.isdir("/run/systemd/system"),
        "user_systemd": os.path.exists(runtime + "/systemd/private"),
        "linger": os.path.exists("/var/lib/systemd/linger/" + me.pw_name),
        "gpus": len(glob.glob("/proc/driver/nvidia/gpus/*"))
        or len([d for d in glob.glob("/dev/nvidia*") if d[11:].isdigit()]),
        "cpus": os.cpu_count() or 1,
    }


def describe_user(name: str) -> "list[Any] | None":
    """Return [user id, group id, home] of a user, or None if the user does not exist."""
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return [entry.pw_uid, entry.pw_gid, entry.pw_dir]


def libc() -> str:
    """Return the C library, such as `glibc 2.36`, or an empty text if it is not glibc."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return ""


def find_pythons(named: str) -> "list[dict[str, Any]]":
    """Return the interpreters in PATH: first the interpreter `named`, then the default
    interpreter.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in [named] * bool(named) + PYTHONS:
        path = shutil.which(name)
        if not path or os.path.realpath(path) in found:
            continue
        about = describe_python(path)
        if about:
            about["named"] = name
            found[os.path.realpath(path)] = about
    return list(found.values())


def describe_python(path: str) -> "dict[str, Any] | None":
    """Describe one interpreter. `usable` is about its kind only, because the plan checks its
    version.
    """
    code, output = run([path, "-I", "-c", ASK_PYTHON])
    if code != 0:
        return None
    version, implementation, in_venv, no_gil, executable = json.loads(output)
    usable = implementation == "cpython" and not in_venv and not no_gil
    return {"path": os.path.realpath(executable), "version": version, "usable": usable}


def describe_installs(roots: "list[list[str]]") -> "list[dict[str, Any]]":
    """Describe the installation at each root, and the free space there."""
    found = []
    for root, state in roots:
        root, state = os.path.expanduser(root), os.path.expanduser(state)
        about = {"root": root, "exists": os.path.isdir(root) and bool(os.listdir(root)), "mode": ""}
        about["free_bytes"], about["state_free_bytes"] = free_bytes(root), free_bytes(state)
        about.update(describe_made(root))
        found.append(about)
    return found


def describe_made(root: str) -> "dict[str, Any]":
    """Describe what deploys made at a root, according to their list. Return an empty dict without a
    list.
    """
    made = []
    for line in read_or_empty(root + "/made.jsonl").splitlines():
        try:
            made.append(json.loads(line))
        except ValueError:  # cut off by a power cut, before the thing it names was made
            continue
    if not made:
        return {}
    files = {entry["path"]: digest(entry["path"]) for entry in made if entry["kind"] == "file"}
    mode = next((entry["mode"] for entry in reversed(made) if entry["kind"] == "install"), "")
    return {
        "mode": mode,
        "current": link_target(root + "/current"),
        "previous": link_target(root + "/previous"),
        "versions": list_names(root + "/versions"),
        "wheels": list_names(root + "/wheels"),
        "pythons": list_names(root + "/pythons"),
        "files": {path: state for path, state in files.items() if state},
        "folders": [
            entry["path"]
            for entry in made
            if entry["kind"] == "folder" and os.path.isdir(entry["path"])
        ],
        "remembered": os.path.isfile(root + "/rollback/remembered.json"),
        "restarted": os.path.isfile(root + "/rollback/restarted"),
        "certificate": next(
            (read_or_empty(path) for path in files if path.endswith("/agent.crt")), ""
        ),
        "active": is_active(root, mode),
    }


def digest(path: str) -> "list[Any] | None":
    """Return [SHA-256, mode, owner's id] of a file, or None if it cannot be read."""
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            return [
                hashlib.sha256(file.read(MAX_FILE_BYTES)).hexdigest(),
                about.st_mode & 0o7777,
                about.st_uid,
            ]
    except OSError:
        return None


def is_active(root: str, mode: str) -> bool:
    """Return True if the supervisor, systemd or the keeper, reports the agent as running."""
    if mode == "daemon":
        return run([sys.executable, "-I", root + "/keeper.py", "status", root])[0] == 0
    # Where no PAM sets it, systemctl --user needs this variable.
    os.environ.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    return (
        run(
            ["systemctl"]
            + ["--user"] * (mode == "user")
            + ["is-active", "benchfleet-agent.service"]
        )[1]
        == "active"
    )


def link_target(path: str) -> str:
    """Return the last part of a link's target, or an empty text if there is no link."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""


def list_names(folder: str) -> "list[str]":
    """Return the names in a folder. Hidden names are left out, because they belong to unfinished
    files.
    """
    try:
        return sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        return []


def free_bytes(path: str) -> int:
    """Return the free bytes of the file system where `path` is or would be."""
    while not os.path.isdir(path) and len(path) > 1:
        path = os.path.dirname(path)
    about = os.statvfs(path)
    return about.f_bavail * about.f_frsize


if __name__ == "probe":
    main(globals()["ASKED"])
