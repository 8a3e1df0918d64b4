"""What a real agent process holds on to: few arenas of the C library, and no word of trials that
are over and known to be.
"""

from __future__ import annotations

import gc
import platform
import re
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleet_agent.trials.trial_metrics import AgentMetrics
from fleet_protos import events as ev
from fleet_protos.trial_types import EngineKind, EngineSpec, Outcome, Phase, TrialSpec
from fleet_protos.v1 import agent_pb2
from tests.integration.test_agent import running_agent

HEAP_BYTES = (
    64 << 20
)  # of glibc's arenas but the first (HEAP_MAX_SIZE on 64 bits): each begins at a multiple
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library has no arenas")

# Threads that hold pieces at once, each in the arena that it was given; then a large piece is freed
# and another one taken.
PIECES = """
import ctypes, threading
from fleet_agent.app.malloc_settings import limit_malloc_arenas
assert limit_malloc_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
all_hold = threading.Barrier(8)
def hold():
    piece = libc.malloc(1000)
    all_hold.wait()
threads = [threading.Thread(target=hold) for _ in range(8)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
libc.free(libc.malloc(1 << 20))
large = libc.malloc(1 << 20)
def size_kib(): return sum(int(line.split()[1]) for line in open('/proc/self/smaps') if line.startswith('Size:'))
held_kib = size_kib()
libc.free(large)
print(held_kib - size_kib())
print(open('/proc/self/maps').read())
"""


def arenas(maps: str) -> int:
    """Arenas but the first, which lies in [heap]: of each 64 MiB are set aside, and only a part of
    them may be written yet.
    """
    parts = re.findall(
        r"^([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *\n\2-([0-9a-f]+) ---p", maps, re.MULTILINE
    )
    return sum(
        int(begin, 16) % HEAP_BYTES == 0 and int(end, 16) == int(begin, 16) + HEAP_BYTES
        for begin, _, end in parts
    )


@glibc
def test_threads_share_two_arenas_and_a_large_piece_goes_back_to_the_kernel_when_it_is_freed() -> (
    None
):
    told = subprocess.run(
        [sys.executable, "-c", PIECES], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    given_back_kib, maps = told.split("\n", 1)
    assert arenas(maps) <= 1
    assert int(given_back_kib) >= 1 << 10


@glibc
def test_an_agent_whose_threads_are_busy_has_two_arenas(tmp_path: Path) -> None:
    with running_agent(tmp_path) as (line, process), ThreadPoolExecutor(16) as pool:
        list(
            pool.map(
                lambda _: line.stub.CheckHost(agent_pb2.CheckHostRequest(), timeout=30), range(16)
            )
        )
        assert arenas(Path(f"/proc/{process.pid}/maps").read_text(encoding="ascii")) <= 1


def test_what_is_shown_of_trials_that_are_over_takes_no_memory_for_each() -> None:
    metrics = AgentMetrics("here")

    def see_trials(first: int, last: int) -> None:
        for number in range(first, last):
            spec = TrialSpec(
                trial_id=f"job-{number:06d}",
                attempt=1,
                engine=EngineSpec(kind=EngineKind.SIMULATED),
            )
            bodies = (
                (ev.TrialAccepted(spec), Phase.LAUNCHING),
                (ev.TrialOver(Outcome.OK), Phase.OVER),
            )
            for sequence, (body, phase) in enumerate(bodies):
                metrics.record(ev.Event(sequence, 0, spec.trial_id, 1, 0, phase, body), spec)

    see_trials(0, 100)
    tracemalloc.start()
    try:
        see_trials(100, 3000)
        gc.collect()
        grown_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown_bytes < 2900 * 4
    shown = {
        tuple(sample.labels.values()): sample.value
        for family in metrics.series.registry.collect()
        for sample in family.samples
    }
    assert (shown["over", "ok"], shown["launching", "none"]) == (3000, 0)
