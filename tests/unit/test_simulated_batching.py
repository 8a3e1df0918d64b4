"""Owns the promises of the simulated engine's loop of steps: exact counts, shared steps, absolute
times.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from fleet_simulator.batching import Batching, Generation
from fleet_simulator.prefix_cache import PrefixCache
from fleet_simulator.time_model import Speculation, TimingConfiguration, decode_s, prefill_s

PLAIN = TimingConfiguration(tp_size=8)
EAGLE3 = TimingConfiguration(
    tp_size=8, speculation=Speculation("EAGLE3", depth=5, topk=1, draft_tokens=6)
)


@dataclass
class TokensGiven:
    """A sink that keeps what it was told."""

    counts: list[int] = field(default_factory=list)
    flushes: int = 0

    def on_tokens(self, generation: Generation, count: int) -> None:
        self.counts.append(count)

    def flush(self, generation: Generation) -> None:
        self.flushes += 1


def batching(
    configuration: TimingConfiguration = PLAIN, cap: int = 100, scale: float = 1.0
) -> Batching:
    return Batching(configuration, cap, scale, lambda at_s: 1.0, "seed")


def ask(want: int, prompt_tokens: int = 40) -> tuple[Generation, TokensGiven]:
    told = TokensGiven()
    return Generation(prompt_tokens, 0, want, 0, stops_itself=False, sink=told), told


def drain(engine: Batching, wake_s: float | None) -> float:
    """Wake exactly when asked until idle; the answer is the last wake."""
    last_s = 0.0
    while wake_s is not None:
        last_s, wake_s = wake_s, engine.wake(wake_s)
    return last_s


def test_a_request_ends_when_the_model_says() -> None:
    engine, (generation, _) = batching(), ask(500)
    end_s = drain(engine, engine.submit(generation, 0.0))
    assert end_s == pytest.approx(prefill_s(40, PLAIN) + 499 * decode_s(1, PLAIN))
    assert generation.first_token_s == pytest.approx(prefill_s(40, PLAIN))


def test_waking_late_does_not_make_steps_late() -> None:
    punctual, late = batching(), batching()
    (first, _), (second, _) = ask(300), ask(300)
    drain(punctual, punctual.submit(first, 0.0))
    wake_s: float | None = late.submit(second, 0.0)
    while wake_s is not None:
        wake_s = late.wake(wake_s + 0.0071)
    assert second.finished_s == pytest.approx(first.finished_s)


def test_the_time_scale_divides_every_step() -> None:
    slow, fast = batching(), batching(scale=20.0)
    ends_s = [drain(engine, engine.submit(ask(50)[0], 0.0)) for engine in (slow, fast)]
    assert ends_s[0] / ends_s[1] == pytest.approx(20.0)


@pytest.mark.parametrize("want", [1, 2, 7, 500])
def test_speculation_gives_several_tokens_a_step_and_exactly_as_many_as_asked(want: int) -> None:
    engine, (generation, told) = batching(EAGLE3), ask(want)
    drain(engine, engine.submit(generation, 0.0))
    assert sum(told.counts) == generation.done == want
    assert generation.verify_steps == len(told.counts) - 1 == sum(generation.correct_drafts)
    if want == 500:
        assert max(told.counts) == 6
        assert want / generation.verify_steps == pytest.approx(1.93, rel=0.03)


def test_running_requests_share_each_step() -> None:
    engine = batching()
    (first, _), (second, _) = ask(100), ask(100)
    wake_s = engine.submit(first, 0.0)
    engine.submit(second, 0.0)
    end_s = drain(engine, wake_s)
    assert engine.totals.decode_steps < 2 * 99
    assert end_s < 2 * (prefill_s(40, PLAIN) + 99 * decode_s(1, PLAIN))


def test_more_requests_than_the_cap_only_queue() -> None:
    engine = batching(cap=2)
    asked = [ask(20) for _ in range(3)]
    wakes = [engine.submit(generation, 0.0) for generation, _ in asked]
    engine.wake(wakes[0])
    engine.wake(wakes[0] + 1e-9)
    assert len(engine.waiting) == 1
    drain(engine, wakes[0])
    assert [generation.done for generation, _ in asked] == [20, 20, 20]
    assert asked[2][0].first_token_s > asked[0][0].finished_s


def test_a_new_request_is_prefilled_before_the_next_decode_step() -> None:
    engine = batching()
    (first, _), (second, _) = ask(1000), ask(5)
    wake_s: float | None = engine.submit(first, 0.0)
    while first.done < 100 and wake_s is not None:
        now_s, wake_s = wake_s, engine.wake(wake_s)
    engine.submit(second, now_s)
    drain(engine, wake_s)
    assert second.first_token_s - second.arrived_s < prefill_s(40, PLAIN) + 2 * decode_s(1, PLAIN)


def test_a_cancelled_request_gets_nothing_more_and_frees_its_place() -> None:
    engine = batching(cap=1)
    (first, told), (second, _) = ask(1000), ask(10)
    wake_s = engine.submit(first, 0.0)
    engine.submit(second, 0.0)
    next_s = engine.wake(wake_s)
    engine.cancel(first)
    drain(engine, next_s)
    assert len(told.counts) == 1
    assert second.finished
    assert engine.totals.aborted == 1
    assert not engine.busy


def test_cached_prompt_tokens_shorten_the_prefill() -> None:
    engine, told = batching(), TokensGiven()
    cached = Generation(1000, 990, 1, 0, stops_itself=False, sink=told)
    drain(engine, engine.submit(cached, 0.0))
    assert cached.first_token_s == pytest.approx(prefill_s(10, PLAIN))


def test_one_seed_gives_one_sequence_of_chunks() -> None:
    counts = []
    for _ in range(2):
        engine, (generation, told) = batching(EAGLE3), ask(200)
        drain(engine, engine.submit(generation, 0.0))
        counts.append(told.counts)
    assert counts[0] == counts[1]


def test_the_prefix_cache_finds_the_longest_common_prefix() -> None:
    cache = PrefixCache()
    assert cache.match_and_insert(["a", "b", "c", "d"]) == 0
    assert cache.match_and_insert(["a", "b", "x", "y", "z"]) == 2
    assert cache.match_and_insert(["a", "b", "x", "q"]) == 3
    assert cache.match_and_insert(["z"]) == 0


def test_the_last_prompt_token_is_never_cached() -> None:
    cache = PrefixCache()
    cache.match_and_insert(["a", "b", "c"])
    assert cache.match_and_insert(["a", "b", "c"]) == 2


def test_a_flush_and_a_disabled_cache_remember_nothing() -> None:
    cache, disabled = PrefixCache(), PrefixCache(enabled=False)
    for known in (cache, disabled):
        known.match_and_insert(["a", "b", "c"])
    cache.flush()
    assert [known.match_and_insert(["a", "b", "c"]) for known in (cache, disabled)] == [0, 0]
