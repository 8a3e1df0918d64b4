"""Owns the promise that the load client and `sglang.bench_serving` say the same of a server, a
simulated and a real one, within noise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from benchmarks.side_by_side.__main__ import ENGINES, LoadComparison, measure, table
from benchmarks.side_by_side.figures import COUNTS
from benchmarks.side_by_side.servers import Load
from benchmarks.side_by_side.verdicts import EQUAL, UNEXPLAINED, Row, verdict
from tests.real_sglang.environment import ensure

pytestmark = pytest.mark.real_sglang

REPEATS = 4
LOADS = {
    "simulated": Load(
        "closed", requests=32, input_tokens=48, output_tokens=16, concurrency=4, warm_up=4
    ),
    "real": Load(
        "closed", requests=24, input_tokens=48, output_tokens=12, concurrency=4, warm_up=4
    ),
}
MOST_NOISE = 1.0  # of a figure: a server that has a share of a processor answers as it gets one
MIDDLE = ("tpot_ms_p50", "e2e_ms_p50", "output_tok_s")


@pytest.fixture(scope="module", params=sorted(LOADS))
def rows(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Row]:
    """By figure, of one load on one server that both clients measured in turns."""
    ensure()
    folder, load = tmp_path_factory.mktemp(request.param), LOADS[request.param]
    with ENGINES[request.param](folder) as server:
        found: dict[str, LoadComparison] = asyncio.run(measure(server, [load], REPEATS, folder))
    print("\n" + table(request.param, list(found.values()), REPEATS))
    return {row.name: row for row in found["closed"].rows}


def test_both_count_the_same_requests_and_tokens(rows: Mapping[str, Row]) -> None:
    assert {name: rows[name].verdict for name in COUNTS} == dict.fromkeys(COUNTS, EQUAL)


def test_every_difference_is_within_noise_or_is_what_the_clients_add_themselves(
    rows: Mapping[str, Row],
) -> None:
    assert [row for row in rows.values() if row.verdict == UNEXPLAINED] == []


@pytest.mark.parametrize("name", MIDDLE)
def test_the_noise_would_not_hide_a_client_that_is_off_by_a_factor_of_three(
    rows: Mapping[str, Row], name: str
) -> None:
    row = rows[name]
    if row.noise > MOST_NOISE * row.ours_by_theirs:
        pytest.skip(
            f"the machine is too busy to tell: {name} is {row.ours_by_theirs:.4g}, its noise {row.noise:.4g}"
        )
    assert verdict(name, row.ours_by_theirs, 3 * row.theirs, row.noise, row.control) == UNEXPLAINED
