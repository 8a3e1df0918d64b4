"""Promises of what the requests of a run ask: the seed decides, variants and runs ask alike, and lengths follow their distribution."""

from __future__ import annotations

import math
import pickle
import statistics
from collections import Counter

import pytest

from fleet_agent.load.asks import Asks, asks_of
from fleet_agent.load.prompts import Draw, draw_prompt
from fleet_protos.trial import Lengths, Workload

FIXED = Workload("w", concurrency=4, prompts="builtin:chat", output_tokens=9)
UNIFORM = Workload("w", concurrency=4, prompts="builtin:chat", output=Lengths("uniform", 3, 7))
LOGNORMAL = Workload("w", concurrency=4, prompts="builtin:chat", output=Lengths("lognormal", most=3000, median=150, sigma=0.8))


def asks(workload: Workload, seed: int = 1, run_index: int = 0) -> Asks:
    return asks_of(workload, Draw(workload.prompts, seed, run_index))


def lengths(workload: Workload, count: int, seed: int = 1, run_index: int = 0) -> list[int]:
    made = asks(workload, seed, run_index)
    return [made.ask(number).output_tokens for number in range(count)]


def test_a_number_is_the_length_of_every_answer() -> None:
    assert set(lengths(FIXED, 50)) == {9}


def test_prompts_are_those_of_the_set_in_the_order_of_the_seed() -> None:
    made = asks(FIXED, 3, 2)
    drawn = [draw_prompt(Draw("builtin:chat", 3, 2), number) for number in range(130)]
    assert [(ask.prompt, ask.digest) for ask in map(made.ask, range(130))] == [(prompt.text, prompt.digest) for prompt in drawn]


def test_uniform_lengths_are_each_as_likely_and_none_is_outside() -> None:
    counted = Counter(lengths(UNIFORM, 5000))
    assert sorted(counted) == [3, 4, 5, 6, 7]
    assert all(count == pytest.approx(1000, rel=0.15) for count in counted.values())


def test_lognormal_lengths_have_their_median_and_spread_and_are_cut_at_the_most() -> None:
    drawn = lengths(LOGNORMAL, 5000)
    assert statistics.median(drawn) == pytest.approx(150, rel=0.05)
    assert statistics.stdev(map(math.log, drawn)) == pytest.approx(0.8, rel=0.05)
    narrow = Workload("w", prompts="builtin:chat", output=Lengths("lognormal", most=200, median=150, sigma=0.8))
    assert max(lengths(narrow, 5000)) == 200
    assert min(lengths(Workload("w", prompts="builtin:chat", output=Lengths("lognormal", most=9, median=1, sigma=3)), 500)) == 1


def test_lengths_are_the_same_in_every_run_and_others_with_another_seed() -> None:
    assert lengths(LOGNORMAL, 100, run_index=0) == lengths(LOGNORMAL, 100, run_index=7)
    assert lengths(LOGNORMAL, 100, seed=1) != lengths(LOGNORMAL, 100, seed=2)


def test_what_a_shard_asks_is_what_the_whole_asks() -> None:
    made = asks(LOGNORMAL)
    shard: Asks = pickle.loads(pickle.dumps(made))
    assert [shard.ask(number) for number in range(1, 40, 2)] == [made.ask(number) for number in range(1, 40, 2)]


@pytest.mark.parametrize("output", [Lengths(), Lengths("normal", 1, 5)])
def test_a_workload_without_lengths_is_refused(output: Lengths) -> None:
    with pytest.raises(ValueError, match="neither uniform nor lognormal"):
        asks(Workload("w", prompts="builtin:chat", output=output))
