"""Builds the C code of the load client on the host that runs it, loads it and declares its
functions. If it cannot be built, the client reads in Python.

One wheel of the agent serves all hosts, so the wheel contains the source. A host that serves models
has a C compiler, because its server compiles kernels. Compiling takes a quarter of a second. The
library is then kept in the folder of the load process, with the digest of its source in its name
(decision 0018).
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

# the folder that keeps the library; empty or unset: it is not built, and Python reads
FOLDER_VARIABLE: Final = "BENCHFLEET_NATIVE"
COMPILE_LIMIT_S: Final = 60.0
LOOK, END, CLOSED, BROKEN = 1, 2, 4, 8
_SOURCES: Final = ("fast_path.c", "reader.c", "stream.c")
_HEADERS: Final = ("native.h", "internal.h")
_FLAGS: Final = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread")


class StreamNews(ctypes.Structure):
    """Mirrors `struct news` of native.h: an event of one stream."""

    _fields_ = (("key", ctypes.c_uint64), ("what", ctypes.c_int32), ("error", ctypes.c_int32))
    key: int
    what: int
    error: int


class NativeAnswer(ctypes.Structure):
    """Mirrors `struct answer` of native.h: the bytes and the reads of one answer."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("times", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
        ("size", ctypes.c_uint64),
        ("reads", ctypes.c_uint64),
        ("room", ctypes.c_uint64),
        ("reads_room", ctypes.c_uint64),
    )
    data: int | None
    times: int | None
    ends: int | None
    size: int
    reads: int


class NativeRun(ctypes.Structure):
    """Mirrors `struct run` of native.h: the events that matched a template."""

    _fields_ = (
        ("at", ctypes.c_uint64),
        ("events", ctypes.c_uint64),
        ("text_size", ctypes.c_uint64),
    )
    at: int
    events: int
    text_size: int


_P, _I, _L, _N = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
# name → type of the result, types of the arguments
_FUNCTIONS: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "bf_read_events": (
        NativeRun,
        (ctypes.c_char_p, _N, _N, ctypes.c_char_p, _N, ctypes.c_char_p, _N, _P, _P, _N, _P, _P),
    ),
    "bf_arrival_ns": (_L, (_L, _L, _L, _L)),
    "bf_gather_ns": (_L, (_L, ctypes.c_uint64, _L)),
    "bf_reader_new": (_P, ()),
    "bf_reader_news_descriptor": (_I, (_P,)),
    "bf_reader_stop": (None, (_P,)),
    "bf_reader_free": (None, (_P,)),
    "bf_reader_cpu_ns": (_L, (_P,)),
    "bf_reader_news": (_I, (_P, _P, _I)),
    "bf_stream_add": (_P, (_P, _I, ctypes.c_uint64)),
    "bf_stream_expect": (_I, (_P, _L, _N)),
    "bf_stream_size": (_N, (_P,)),
    "bf_stream_peek": (_N, (_P, _N, _P, _N)),
    "bf_stream_watch": (_I, (_P, _N)),
    "bf_stream_take": (None, (_P, _P)),
    "bf_answer_give_back": (None, (_P, _P)),
    "bf_answer_free": (None, (_P,)),
    "bf_stream_drop": (None, (_P,)),
}


class Library:
    """Holds the functions of the C library by their names. All functions but `run` take
    microseconds and are called with Python's lock held. `run` blocks and is called without the
    lock.
    """

    def __init__(self, path: Path) -> None:
        """Load the library. Raises OSError if the file is not a shared library. Raises
        AttributeError if a function is missing.
        """
        short = ctypes.PyDLL(str(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(short, name)
            function.restype, function.argtypes = result, arguments
        self.call: Any = short
        self.run: Any = ctypes.CDLL(str(path)).bf_reader_run
        self.run.restype, self.run.argtypes = None, (_P,)


@lru_cache(1)
def load_library() -> Library | None:
    """Return the library for this process, and build it if necessary. Return None if it cannot be
    built; the reason is logged once.
    """
    folder = os.environ.get(FOLDER_VARIABLE, "")
    return _loaded(Path(folder)) if folder else None


def _loaded(folder: Path) -> Library | None:
    try:
        return Library(build_library(folder))
    except (OSError, AttributeError, subprocess.SubprocessError) as error:
        log.warning(
            "answers are read in Python, which takes more CPU time: %s",
            _describe_error(error),
        )
        return None


def find_compiler() -> Sequence[str]:
    """Return the command of the C compiler on this host. Return nothing if there is no compiler.

    The variable CC may hold several words, such as `ccache gcc`.
    """
    named = shlex.split(os.environ.get("CC", ""))
    if named and shutil.which(named[0]):
        return named
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    return [found] if found else []


def build_library(folder: Path) -> Path:
    """Return the path of the library in `folder`. Compile the library unless it exists. Raises
    OSError, CalledProcessError or TimeoutExpired.
    """
    target = folder / f"load-{_digest()}.so"
    if _is_ours(target):
        return target
    program = find_compiler()
    if not program:
        raise FileNotFoundError("no C compiler (cc, gcc or clang) was found on PATH")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _only_we_write(folder.lstat()):
        raise PermissionError(
            f"{folder} belongs to another user, or others may write to it: "
            f"make it your own, then chmod 700 {folder}"
        )
    here = Path(__file__).parent
    descriptor, fresh = tempfile.mkstemp(suffix=".so", dir=folder)
    os.close(descriptor)
    try:
        sources = [str(here / name) for name in _SOURCES]
        subprocess.run(
            [*program, *_FLAGS, "-o", fresh, *sources],
            check=True,
            capture_output=True,
            timeout=COMPILE_LIMIT_S,
            text=True,
        )
        os.replace(fresh, target)  # atomic, even if another process builds it at the same time
    finally:
        Path(fresh).unlink(missing_ok=True)
    return target


def _digest() -> str:
    """Return the digest of everything that the library depends on, except the compiler. A host has
    only one compiler.
    """
    here = Path(__file__).parent
    content = b"".join((here / name).read_bytes() for name in (*_SOURCES, *_HEADERS))
    return hashlib.sha256(content + " ".join((*_FLAGS, os.uname().machine)).encode()).hexdigest()[
        :16
    ]


def _is_ours(path: Path) -> bool:
    """Return whether the file exists and no other user can have written it."""
    try:
        found, folder = path.lstat(), path.parent.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and _only_we_write(found) and _only_we_write(folder)


def _only_we_write(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _describe_error(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        error_lines = [line for line in str(error.stderr).splitlines() if line.strip()]
        reason = error_lines[0] if error_lines else f"exit code {error.returncode}"
        return f"{error.cmd[0]} failed: {reason}"
    return str(error)
