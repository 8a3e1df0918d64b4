"""Promises of the comparison with bench_serving: its definitions by hand, its arrivals, and what is
said of a difference.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.side_by_side import verdicts
from benchmarks.side_by_side.figures import COUNTS, NAMES, Figures, Times, figures
from benchmarks.side_by_side.servers import Load
from benchmarks.side_by_side.theirs import arrivals_s, lateness_s
from benchmarks.side_by_side.verdicts import (
    EQUAL,
    EXPLAINED,
    TOO_NOISY,
    UNEXPLAINED,
    WITHIN,
    Control,
)

MS = 1_000_000
BEGAN = 5_000 * MS
OPEN = Load("open", requests=20, input_tokens=8, output_tokens=4, rate_per_s=10.0)


def request(sent_ms: int, *chunks: tuple[int, int], last_ms: int = 0) -> Times:
    """Chunks are (milliseconds after the beginning, tokens)."""
    times = [(BEGAN + at * MS, tokens) for at, tokens in chunks]
    last = BEGAN + (last_ms or chunks[-1][0]) * MS
    return Times(BEGAN + sent_ms * MS, times, last, 7, sum(tokens for _, tokens in chunks))


def run(**changed: float) -> Figures:
    """One run in which every figure is 100, but for those that are named."""
    return {name: 100.0 for name in NAMES} | changed


def repeats(*values: float, name: str = "ttft_ms_p50") -> list[Figures]:
    return [run(**{name: value}) for value in values]


def said(
    ours: list[Figures],
    theirs: list[Figures],
    name: str = "ttft_ms_p50",
    known: Control | None = None,
) -> str:
    (row,) = [
        row
        for row in verdicts.rows(
            [(one, one) for one in ours], theirs, {name: known} if known else {}
        )
        if row.name == name
    ]
    return row.verdict


def test_latencies_count_from_the_sending_and_the_rate_from_the_first_to_the_last() -> None:
    found = figures(
        [request(0, (100, 1), (150, 1)), request(50, (250, 1), (300, 1), (350, 2), last_ms=400)],
        after_s=0.6,
    )
    assert (found["requests"], found["input_tokens"], found["output_tokens"]) == (2, 14, 6)
    assert found["output_tok_s"] == pytest.approx(6 / 1.0)
    assert (found["ttft_ms_mean"], found["e2e_ms_mean"]) == (150, 250)
    assert found["tpot_ms_mean"] == pytest.approx((50 / 1 + 150 / 3) / 2)


def test_the_gap_before_an_event_is_shared_among_its_tokens_and_those_of_the_first_do_not_count() -> (
    None
):
    found = figures([request(0, (10, 3), (20, 1), (50, 3))])
    assert found["itl_ms_mean"] == pytest.approx((10 + 3 * 10) / 4)
    assert found["itl_ms_p99"] == pytest.approx(10)


def test_one_token_has_no_time_per_token() -> None:
    found = figures([request(0, (10, 1))])
    assert (found["tpot_ms_mean"], found["itl_ms_p99"], found["output_tok_s"]) == (0, 0, 100)


def test_no_request_is_no_figure() -> None:
    with pytest.raises(ValueError, match="no request succeeded"):
        figures([])


def test_what_repeats_differ_by_is_noise() -> None:
    assert said(repeats(99, 100, 101), repeats(100, 101, 102)) == WITHIN


def test_noise_as_wide_as_the_figure_is_no_agreement() -> None:
    assert said(repeats(50, 100, 150), repeats(60, 110, 160)) == TOO_NOISY


def test_a_difference_beyond_the_repeats_is_unexplained_and_nothing_hides_it() -> None:
    assert said(repeats(99, 100, 101), repeats(129, 130, 131)) == UNEXPLAINED
    assert said(repeats(99, 100, 101), repeats(69, 70, 71)) == UNEXPLAINED


def test_a_difference_is_explained_by_what_the_clients_add_on_a_server_that_cannot_differ_and_only_in_its_direction() -> (
    None
):
    known = Control(difference=20.0, noise=1.0, ours_error=0.1, theirs_error=20.1)
    assert said(repeats(99, 100, 101), repeats(129, 130, 131), known=known) == EXPLAINED
    assert said(repeats(99, 100, 101), repeats(69, 70, 71), known=known) == UNEXPLAINED
    assert said(repeats(99, 100, 101), repeats(159, 160, 161), known=known) == UNEXPLAINED


def test_the_rates_control_is_relative() -> None:
    known = Control(difference=-0.03, noise=0.001, ours_error=0.0, theirs_error=-0.03)
    ours, theirs = (
        repeats(999, 1000, 1001, name="output_tok_s"),
        repeats(969, 970, 971, name="output_tok_s"),
    )
    assert said(ours, theirs, "output_tok_s", known) == EXPLAINED
    assert said(ours, theirs, "output_tok_s") == UNEXPLAINED


def test_counts_have_no_noise() -> None:
    for name in COUNTS:
        assert (
            said(repeats(100, 100, 100, name=name), repeats(100, 100, 100, name=name), name)
            == EQUAL
        )
        assert (
            said(repeats(100, 100, 100, name=name), repeats(100, 100, 99, name=name), name)
            == UNEXPLAINED
        )


def test_noise_shrinks_with_repeats_and_grows_with_their_spread() -> None:
    few, many = (
        verdicts.half_width([99, 100, 101], [99, 100, 101]),
        verdicts.half_width([99, 100, 101] * 3, [99, 100, 101] * 3),
    )
    assert many < few < verdicts.half_width([90, 100, 110], [90, 100, 110])
    assert verdicts.half_width([5, 5, 5], [5, 5, 5]) == 0


def test_noise_needs_repeats() -> None:
    with pytest.raises(ValueError, match="two repeats"):
        verdicts.half_width([1], [1])


def test_a_control_is_the_difference_of_the_clients_and_tells_whose_error_it_is() -> None:
    true = run(ttft_ms_p50=50)
    ours, theirs = [(run(ttft_ms_p50=50.1), true)] * 3, [(run(ttft_ms_p50=53), true)] * 3
    found = verdicts.control("ttft_ms_p50", ours, theirs)
    assert (found.difference, found.ours_error, found.theirs_error) == (
        pytest.approx(2.9),
        pytest.approx(0.1),
        3,
    )


def test_arrivals_are_a_poisson_process_of_their_rate_and_of_their_seed() -> None:
    many = Load("open", requests=4000, input_tokens=8, output_tokens=4, rate_per_s=10.0)
    offsets = arrivals_s(many, 494, 3)
    gaps = [late - early for early, late in pairwise(offsets)]
    mean = sum(gaps) / len(gaps)
    assert (offsets[0], len(offsets)) == (0.0, 4000)
    assert mean == pytest.approx(0.1, rel=0.05)
    assert sum(gap > mean for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)
    assert offsets != arrivals_s(many, 494, 4)


def test_requests_that_come_at_other_times_than_they_should_be_drawn_are_told() -> None:
    due = arrivals_s(OPEN, 494)
    assert lateness_s(
        OPEN, 494, [round(1e9 * (at_s + 0.002 * number)) for number, at_s in enumerate(due)]
    ) == pytest.approx(0.038)
    with pytest.raises(RuntimeError, match="draws its arrivals in another way"):
        lateness_s(OPEN, 494, [round(1e9 * at_s) for at_s in arrivals_s(OPEN, 494, 2)])
