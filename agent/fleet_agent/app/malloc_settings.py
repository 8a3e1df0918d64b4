"""Owns how the C library hands out memory in the agent's own process: few arenas, large pieces
given back at once. Allocates nothing.

glibc makes an arena for each thread that allocates while others do, up to eight a core, and lets
the size from which a piece is given back to the kernel on its own rise to that of the largest piece
that was ever freed. The agent's work passes over a dozen threads (its own, gRPC's, one a child
process) in pieces of up to a megabyte. With glibc's defaults it had 14 arenas after 25 short
trials, and from the 100th trial to the 325th 11.6 MiB in use became 11.7, while what lay free in
them grew from 25 to 31 MiB and was touched bit by bit: 41 MiB resident became 49 with nothing kept.
Protobuf gives all that is free back from time to time (malloc_trim(3), each 10,000 of its arenas),
so that it began anew. Threads of Python run one at a time: sharing two arenas costs them nothing.
"""

from __future__ import annotations

import ctypes

MAX_ARENAS = 2
MMAP_THRESHOLD_BYTES = 128 << 10  # glibc's own first value, which stays where it is once it was set

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # M_… of malloc.h


def limit_malloc_arenas() -> bool:
    """Before the first thread is started; False with a C library that has no such setting (musl has
    no arenas).

    By call and not by MALLOC_ARENA_MAX, which servers and the load process would inherit.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_ARENA_MAX, MAX_ARENAS)) and bool(
        mallopt(_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    )
