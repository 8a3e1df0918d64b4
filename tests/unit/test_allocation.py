"""Owns the promises of the GPU and port pool."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_agent.core.allocation import GpuPool, claim_gpus, promise_port, release
from fleet_protos.errors import Conflict

EIGHT = GpuPool(tuple(range(8)))


def test_neighbouring_gpus_are_given_together() -> None:
    pool, first = claim_gpus(EIGHT, "a/1", 1)
    pool, four = claim_gpus(pool, "b/1", 4)
    pool, two = claim_gpus(pool, "c/1", 2)
    assert (first, four, two) == ((0,), (4, 5, 6, 7), (2, 3))


def test_scattered_gpus_are_given_when_nothing_else_is_free() -> None:
    pool, _ = claim_gpus(GpuPool((0, 1, 3, 5)), "a/1", 1)
    assert claim_gpus(pool, "b/1", 3)[1] == (1, 3, 5)


def test_asking_again_gives_the_same_gpus() -> None:
    pool, gpus = claim_gpus(EIGHT, "a/1", 2)
    assert claim_gpus(pool, "a/1", 2) == (pool, gpus)


def test_asking_for_another_number_is_refused() -> None:
    pool, _ = claim_gpus(EIGHT, "a/1", 2)
    with pytest.raises(Conflict, match="asks for 4 GPUs but already holds 2"):
        claim_gpus(pool, "a/1", 4)


def test_a_refusal_names_who_holds_the_gpus() -> None:
    pool, _ = claim_gpus(EIGHT, "a/1", 6)
    with pytest.raises(
        Conflict, match=r"needs 4 GPUs, but 2 are free; a/1 has \[0, 1, 2, 3, 4, 5\]"
    ):
        claim_gpus(pool, "b/1", 4)


def test_more_than_the_host_has_is_told_apart_from_busy() -> None:
    with pytest.raises(Conflict, match="this host has 8"):
        claim_gpus(EIGHT, "a/1", 16)


def test_a_trial_without_gpus_can_hold_a_port() -> None:
    pool, gpus = claim_gpus(GpuPool(), "a/1", 0)
    held = promise_port(pool, "a/1", 4000).allocation_of("a/1")
    assert gpus == ()
    assert held is not None
    assert held.port == 4000


def test_a_port_is_promised_once() -> None:
    pool, _ = claim_gpus(EIGHT, "a/1", 1)
    pool, _ = claim_gpus(pool, "b/1", 1)
    pool = promise_port(pool, "a/1", 4000)
    assert promise_port(pool, "a/1", 4000) == pool
    with pytest.raises(Conflict, match="port 4000 is assigned to trial a/1"):
        promise_port(pool, "b/1", 4000)
    assert promise_port(release(pool, "a/1"), "b/1", 4000)


def test_a_trial_that_holds_nothing_gets_no_port() -> None:
    with pytest.raises(Conflict, match="has no allocation"):
        promise_port(EIGHT, "a/1", 4000)


def test_releasing_twice_is_harmless() -> None:
    pool, _ = claim_gpus(EIGHT, "a/1", 8)
    pool = release(release(pool, "a/1"), "a/1")
    assert pool == EIGHT


MOVES = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(0, 9), st.integers(1, 4), st.booleans()),
    max_size=40,
)


@given(MOVES)
def test_two_trials_never_share_a_gpu_or_a_port(moves: list[tuple[str, int, int, bool]]) -> None:
    pool = EIGHT
    for trial, gpus, port, take_it in moves:
        try:
            pool = (
                promise_port(claim_gpus(pool, trial, gpus)[0], trial, port)
                if take_it
                else release(pool, trial)
            )
        except Conflict:
            continue
        held = Counter(gpu for allocation in pool.allocations for gpu in allocation.gpus)
        ports = Counter(allocation.port for allocation in pool.allocations if allocation.port)
        assert not [name for name, count in (*held.items(), *ports.items()) if count > 1]
        assert sorted((*held, *pool.free)) == list(range(8))
