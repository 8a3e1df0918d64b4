"""Owns the promises of the simulated engine's model of time and of its noise."""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise

import pytest

from fleet_simulator.noise import draw_accept_lengths, drift_factor, launch_factor, run_factor
from fleet_simulator.time_model import (
    Speculation,
    TimingConfiguration,
    accept_length,
    accept_shares,
    all_reduce_s,
    decode_s,
    draft_s,
    prefill_s,
    stream_tok_s,
    verify_s,
)
from tests.fakes.simulated_server import TUNED

EAGLE3_5 = Speculation("EAGLE3", depth=5, topk=1, draft_tokens=6)
EAGLE3_2 = Speculation("EAGLE3", depth=2, topk=1, draft_tokens=3)
DEFAULT = TimingConfiguration(tp_size=8)
TUNED_NCCL = TimingConfiguration(tp_size=8, nccl=TUNED)


@pytest.mark.parametrize(
    ("nccl", "speculation", "measured_tok_s"),
    [({}, None, 62.9), (TUNED, None, 88.8), ({}, EAGLE3_5, 71.3), (TUNED, EAGLE3_5, 86.7)],
)
def test_a_single_stream_has_the_measured_rate(
    nccl: dict[str, str], speculation: Speculation | None, measured_tok_s: float
) -> None:
    assert stream_tok_s(TimingConfiguration(8, nccl, speculation)) == pytest.approx(
        measured_tok_s, rel=0.005
    )


@pytest.mark.parametrize(("speculation", "ratio"), [(None, 88.8 / 62.9), (EAGLE3_5, 86.7 / 71.3)])
def test_tuned_over_default_has_the_measured_ratio(
    speculation: Speculation | None, ratio: float
) -> None:
    tuned, default = (
        stream_tok_s(replace(configuration, speculation=speculation))
        for configuration in (TUNED_NCCL, DEFAULT)
    )
    assert tuned / default == pytest.approx(ratio, rel=0.005)


@pytest.mark.parametrize("configuration", [DEFAULT, TUNED_NCCL])
def test_two_steps_lie_between_no_speculation_and_five_steps(
    configuration: TimingConfiguration,
) -> None:
    none, two, five = (
        stream_tok_s(replace(configuration, speculation=speculation))
        for speculation in (None, EAGLE3_2, EAGLE3_5)
    )
    assert min(none, five) < two < max(none, five)
    assert (
        1
        < accept_length(replace(DEFAULT, speculation=EAGLE3_2))
        < accept_length(replace(DEFAULT, speculation=EAGLE3_5))
    )


@pytest.mark.parametrize("configuration", [DEFAULT, TUNED_NCCL])
def test_verify_is_nearly_the_whole_cycle(configuration: TimingConfiguration) -> None:
    cycle = replace(configuration, speculation=EAGLE3_5)
    assert 0.021 < verify_s(1, cycle) < 0.028
    assert verify_s(1, cycle) / decode_s(1, cycle) > 0.95
    assert decode_s(1, cycle) == pytest.approx(verify_s(1, cycle) + draft_s(1, cycle))


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_NTHREADS", "512"), ("NCCL_MAX_NCHANNELS", "16"), ("NCCL_BUFFSIZE", "16777216")],
)
def test_a_variable_without_effect_changes_no_time(name: str, value: str) -> None:
    assert all_reduce_s(1, TimingConfiguration(8, {name: value})) == all_reduce_s(1, DEFAULT)


@pytest.mark.parametrize(
    ("name", "value"), [("NCCL_PROTO", "LL"), ("NCCL_ALGO", "Ring"), ("NCCL_P2P_LEVEL", "SYS")]
)
def test_each_variable_with_effect_gives_a_part_of_the_gain(name: str, value: str) -> None:
    assert (
        all_reduce_s(1, TUNED_NCCL)
        < all_reduce_s(1, TimingConfiguration(8, {name: value}))
        < all_reduce_s(1, DEFAULT)
    )


def test_the_low_latency_protocol_loses_on_large_messages() -> None:
    low_latency = TimingConfiguration(8, {"NCCL_PROTO": "LL"})
    assert all_reduce_s(1, low_latency) < all_reduce_s(1, DEFAULT)
    assert all_reduce_s(8192, low_latency) > all_reduce_s(8192, DEFAULT)


def test_one_gpu_needs_no_all_reduce() -> None:
    assert decode_s(1, TimingConfiguration(1, TUNED)) == decode_s(1, TimingConfiguration(1))


def test_speculation_loses_in_a_large_batch() -> None:
    def rate(speculation: Speculation | None, batch: int) -> float:
        configuration = replace(DEFAULT, speculation=speculation)
        return batch * accept_length(configuration) / decode_s(batch, configuration)

    assert rate(EAGLE3_5, 1) > rate(None, 1)
    assert rate(EAGLE3_5, 32) < rate(None, 32)


def test_a_batch_gives_more_in_all_and_less_to_each() -> None:
    rates = [batch / decode_s(batch, DEFAULT) for batch in (1, 8, 32)]
    assert rates == sorted(rates)
    assert decode_s(1, DEFAULT) < decode_s(8, DEFAULT) < decode_s(32, DEFAULT)


def test_a_short_chat_prompt_waits_about_50_ms() -> None:
    assert prefill_s(40, DEFAULT) == pytest.approx(0.050, rel=0.03)
    assert prefill_s(4000, DEFAULT) > 10 * prefill_s(40, DEFAULT)


def test_a_draft_of_another_kind_accepts_nothing() -> None:
    assert (
        accept_length(replace(DEFAULT, speculation=replace(EAGLE3_5, matches_draft=False))) == 1.0
    )


@pytest.mark.parametrize("speculation", [EAGLE3_5, EAGLE3_2])
def test_accept_shares_are_a_distribution_and_the_deck_keeps_their_mean(
    speculation: Speculation,
) -> None:
    shares = accept_shares(speculation)
    deck = draw_accept_lengths(shares, "any")
    assert sum(shares) == pytest.approx(1.0)
    assert statistics.fmean(deck) == pytest.approx(
        accept_length(replace(DEFAULT, speculation=speculation)), abs=0.02
    )
    assert max(deck) == speculation.depth + 1


def test_decks_of_one_seed_are_equal_and_of_two_seeds_are_not() -> None:
    shares = accept_shares(EAGLE3_5)
    assert (
        draw_accept_lengths(shares, "a")
        == draw_accept_lengths(shares, "a")
        != draw_accept_lengths(shares, "b")
    )


def test_no_noise_is_exactly_one() -> None:
    assert (
        launch_factor(1, "t/1", 0.0),
        run_factor(1, "t/1", 0.0, 123.0),
        drift_factor(1, 0.0, 5.0),
    ) == (1.0, 1.0, 1.0)


def test_noise_is_decided_by_seed_and_launch() -> None:
    assert launch_factor(1, "t/1", 0.1) == launch_factor(1, "t/1", 0.1)
    assert (
        len(
            {
                launch_factor(1, "t/1", 0.1),
                launch_factor(1, "t/2", 0.1),
                launch_factor(2, "t/1", 0.1),
            }
        )
        == 3
    )
    assert (
        run_factor(1, "t/1", 0.1, 5.0)
        == run_factor(1, "t/1", 0.1, 5.0)
        != run_factor(1, "t/2", 0.1, 5.0)
    )


def test_launches_differ_by_the_deviation_that_was_asked() -> None:
    factors = [launch_factor(7, f"t/{launch}", 0.05) for launch in range(2000)]
    assert statistics.stdev(factors) == pytest.approx(0.05, rel=0.1)
    assert statistics.median(factors) == pytest.approx(1.0, abs=0.005)


def test_run_noise_is_slow_and_has_the_deviation_that_was_asked() -> None:
    factors = [run_factor(7, "t/1", 0.05, at_s) for at_s in range(0, 40_000, 10)]
    assert statistics.stdev(factors) == pytest.approx(0.05, rel=0.1)
    assert abs(run_factor(7, "t/1", 0.05, 100.0) - run_factor(7, "t/1", 0.05, 100.1)) < 0.005


def test_drift_has_the_slope_that_was_asked_and_stays_bounded() -> None:
    hours = [1000 + minute / 60 for minute in range(600)]
    factors = [drift_factor(3, 0.08, hour) for hour in hours]
    slopes = [abs(later - earlier) * 60 for earlier, later in pairwise(factors)]
    assert statistics.median(slopes) == pytest.approx(0.08)
    assert max(abs(factor - 1) for factor in factors) <= 0.08 + 1e-9
    assert statistics.fmean(factors[:240]) == pytest.approx(1.0, abs=1e-3)
