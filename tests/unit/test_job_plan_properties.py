"""What holds for the plan of any job."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleet_controller.core.job import HostChoice, Job, Level
from fleet_controller.planning.job_plan import Plan, make_plan
from fleet_protos.trial_types import EngineKind, EngineSpec, Measure, Workload

NAMES = st.text("abcdefgh123-", min_size=1, max_size=4)
FACTORS = st.dictionaries(
    NAMES, st.dictionaries(NAMES, st.just(Level()), min_size=1, max_size=4), max_size=3
)
HOSTS = st.lists(NAMES, min_size=1, max_size=3, unique=True)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    factors = draw(FACTORS)
    return Job(
        name="j",
        engine=EngineSpec(kind=EngineKind.SIMULATED),
        workloads=(Workload(name="single", concurrency=1, requests=1, output_tokens=1),),
        measure=Measure(seed=draw(st.integers(0, 2**53))),
        factors=factors,
        baseline={name: next(iter(levels)) for name, levels in factors.items()},
        launches=draw(st.integers(1, 5)),
        hosts=HostChoice(every_host=draw(st.booleans())),
    )


def order(plan: Plan) -> list[tuple[str, int, str]]:
    return [(trial.host, trial.block, trial.variant.name) for trial in plan.trials]


@given(jobs(), HOSTS)
def test_the_same_seed_gives_the_same_plan(job: Job, hosts: list[str]) -> None:
    assert make_plan(job, hosts) == make_plan(job, hosts)


@given(jobs(), HOSTS)
def test_each_block_launches_every_variant_once(job: Job, hosts: list[str]) -> None:
    plan = make_plan(job, hosts)
    names = sorted(variant.name for variant in plan.variants)
    blocks = {(trial.host, trial.block) for trial in plan.trials}
    for block in blocks:
        assert (
            sorted(
                trial.variant.name for trial in plan.trials if (trial.host, trial.block) == block
            )
            == names
        )
    assert len(blocks) == job.launches * (len(hosts) if job.hosts.every_host else 1)


@given(jobs(), HOSTS)
def test_blocks_come_one_after_the_other_and_orders_count_up(job: Job, hosts: list[str]) -> None:
    plan = make_plan(job, hosts)
    for host in hosts:
        mine = [trial for trial in plan.trials if trial.host == host]
        assert [trial.order for trial in mine] == list(range(1, len(mine) + 1))
        assert [trial.block for trial in mine] == sorted(trial.block for trial in mine)


@given(st.integers(0, 10**6))
def test_another_seed_gives_another_order(seed: int) -> None:
    levels = {f"l{n}": Level(env={"N": str(n)}) for n in range(12)}
    job = Job(
        name="j",
        engine=EngineSpec(kind=EngineKind.SIMULATED),
        workloads=(),
        factors={"f": levels},
        baseline={"f": "l0"},
    )
    one, other = (
        make_plan(replace(job, measure=Measure(seed=number)), ["h"]) for number in (seed, seed + 1)
    )
    assert order(one) != order(other)


@given(jobs(), HOSTS)
def test_another_variant_does_not_change_the_order_of_the_rest(job: Job, hosts: list[str]) -> None:
    name = next(iter(job.factors), None)
    if name is None:
        return
    wider = replace(
        job, factors={**job.factors, name: {**job.factors[name], "zz-new": Level(env={"NEW": "1"})}}
    )
    kept = [
        place
        for place in order(make_plan(wider, hosts))
        if f"{name}=zz-new" not in place[2].split(",")
    ]
    assert kept == order(make_plan(job, hosts))


def test_over_many_blocks_every_variant_comes_first_about_as_often() -> None:
    levels = {f"l{n}": Level(env={"N": str(n)}) for n in range(5)}
    engine = EngineSpec(kind=EngineKind.SIMULATED)
    job = Job(
        name="j",
        engine=engine,
        workloads=(),
        factors={"f": levels},
        baseline={"f": "l0"},
        launches=1000,
    )
    first = [trial.variant.name for trial in make_plan(job, ["h"]).trials[::5]]
    counts = [first.count(f"f={level}") for level in levels]
    assert all(150 < count < 250 for count in counts), counts
