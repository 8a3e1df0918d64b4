"""Promises of the load client's benchmarks: what they say of a machine that cannot tell, and of
runs too small to tell.
"""

from __future__ import annotations

import math

import pytest

from benchmarks.load import memory, scaling, streams
from benchmarks.load.loaded import CpuTimes, CpuWatch
from benchmarks.load.memory import REQUESTS
from benchmarks.load.scaling import ScalingRun


def took(tok_s: float, us: float = 5.0, server: float = 0.5, others: float = 0.0) -> ScalingRun:
    return ScalingRun(tok_s, us, 1.0, server, others, 0.0)


def said(one: ScalingRun, two: ScalingRun, cores: int = 8) -> str:
    return scaling.summary({"burst": {1: one, 2: two}}, cores)


def test_two_shards_are_judged_by_throughput_where_their_cores_are_free() -> None:
    assert ">= 1.7x: kept: 1.80x" in said(took(100), took(180))
    assert ">= 1.7x: MISSED: 1.50x" in said(took(100), took(150))


def test_where_two_cores_are_not_free_the_ratio_is_not_called_a_result() -> None:
    for two, cores in ((took(190), 2), (took(190, others=6.0), 8)):
        words = said(took(100), two, cores)
        assert "not resolvable here" in words
        assert "kept" not in words and "MISSED" not in words


def test_a_server_that_is_the_limit_says_nothing_of_two_shards() -> None:
    assert "the server was the limit" in said(took(100), took(130, server=0.95))


def test_cpu_time_of_a_token_tells_what_free_cores_would_give() -> None:
    assert scaling.ratio_by_cpu({1: took(100, us=5.0), 2: took(100, us=5.0)}) == 2
    assert scaling.ratio_by_cpu({1: took(100, us=5.0), 2: took(100, us=10.0)}) == 1


def test_cores_are_means_between_the_looks_nearest_to_the_run() -> None:
    looks = [CpuTimes(round(1e9 * at), 2.0 * at, 0.1 * at, 0.5 * at) for at in range(10)]
    cores = CpuWatch(looks).mean_cores(2_100_000_000, 3.8)
    assert (cores.busy_s, cores.server_s) == (pytest.approx(2), pytest.approx(0.5))


def test_streams_are_open_at_once_when_their_times_overlap() -> None:
    assert streams.max_open([0, 1, 5], [3, 6, 9]) == 2
    assert streams.max_open([0, 3], [3, 6]) == 1  # one begins as the other ends


def test_memory_of_a_million_is_what_was_measured_or_on_the_line_or_not_told() -> None:
    runs = [memory.MemoryRun(70_000, 400.0, 1, 1), memory.MemoryRun(100_000, 415.0, 1, 1)]
    assert memory.at_requests(runs, REQUESTS) == pytest.approx(415 + 900_000 * 15 / 30_000)
    assert memory.at_requests([*runs, memory.MemoryRun(REQUESTS, 480.0, 1, 1)], REQUESTS) == 480
    small = memory.at_requests(
        [memory.MemoryRun(7_000, 300.0, 1, 1), memory.MemoryRun(10_000, 330.0, 1, 1)], REQUESTS
    )
    assert math.isnan(small)
    assert "unknown" in memory.summary(small, measured=False)
