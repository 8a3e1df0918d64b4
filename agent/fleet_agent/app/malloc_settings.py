"""Limits the memory that glibc's malloc keeps in the agent's own process.

By default, glibc creates an arena for each thread that allocates at the same time as others, up to
eight per core, and raises the size above which a block is returned to the kernel at once to that of
the largest block ever freed. The agent's work passes over a dozen threads (its own, gRPC's, one per
child process) in blocks of up to a megabyte. With the defaults it had 14 arenas after 25 short
trials. From the 100th to the 325th trial, memory in use grew from 11.6 to 11.7 MiB, but free memory
inside the arenas grew from 25 to 31 MiB and was touched bit by bit, so that 41 MiB resident became
49. Protobuf returns all free memory from time to time (malloc_trim(3), once per 10,000 of its
arenas), after which the growth began again. Python threads run one at a time, so sharing two arenas
costs them nothing.
"""

from __future__ import annotations

import ctypes

MAX_ARENAS = 2
MMAP_THRESHOLD_BYTES = 128 << 10  # glibc's initial value; setting it keeps it fixed

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # M_MMAP_THRESHOLD and M_ARENA_MAX of malloc.h


def limit_malloc_arenas() -> bool:
    """Set the limits; call this before the first thread starts. Return False for a C library
    without these settings (musl has no arenas).

    It calls mallopt instead of setting MALLOC_ARENA_MAX, which servers and the load process would
    inherit.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_ARENA_MAX, MAX_ARENAS)) and bool(
        mallopt(_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    )
