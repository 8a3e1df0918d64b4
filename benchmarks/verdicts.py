"""Measures how often verdicts are wrong, and how often they find what is there.

Draws jobs at random (log-normal launches, runs, drift through the session), stops each launch by
the agent's own rules, and judges the launches with the product's own functions. Next to them it
prints method 1 (each row alone, paired t) and the runs taken as launches. `--jobs` sets how many
jobs are drawn for each line; the bounds have three standard errors of 5 % for 4,000 jobs.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from fleet_agent.core.steady_state import judge_steadiness
from fleet_agent.core.stop_rule import Decision, decide
from fleet_controller.analysis.cell_judgement import judge_cell
from fleet_controller.analysis.cell_model import LaunchValue
from fleet_controller.analysis.ratio_estimates import (
    BridgeEstimate,
    RatioEstimate,
    cell_estimates,
    pair_estimate,
    welch_estimate,
)
from fleet_controller.analysis.statistics import geometric_mean
from fleet_controller.analysis.verdict import (
    Judgement,
    Outlook,
    Question,
    Verdict,
    ratio_interval,
)
from fleet_protos.trial_types import Measure

SEED = 15
LAUNCH_POOL = 4000
CONFIDENCE = 0.95
MEASURE = Measure(runs_min=5, runs_max=20, precision=0.02, confidence=CONFIDENCE)


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of a job; all values are relative. `launch` has one value, or one a variant.

    `drift` is the change of the level from the first to the last launch. `tail` makes that share
    of the launches four times as noisy.
    """

    launch: float | Sequence[float] = 0.03
    run: float = 0.01
    drift: float = 0.0
    tail: float = 0.0

    def of(self, variant: int) -> float:
        """Return the noise of the launches of a variant."""
        return self.launch if isinstance(self.launch, float | int) else self.launch[variant]


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: its value and the values of its runs."""

    variant: int
    block: int
    value: float
    runs: tuple[float, ...]


@cache
def runs_pool(noise: float) -> tuple[tuple[float, ...], ...]:
    """Return the counted runs of many launches, relative to the level of their launch.

    They are drawn once for each noise, because the agent's rules take most of the time.
    """
    rng = random.Random(SEED)
    return tuple(_measured_runs(rng, noise) for _ in range(LAUNCH_POOL))


@dataclass(frozen=True, slots=True)
class Dice:
    """Draws jobs."""

    rng: random.Random = field(default_factory=lambda: random.Random(SEED))

    def job(
        self, variants: int, blocks: int, noise: Noise, truth: Mapping[int, float] | None = None
    ) -> list[Launch]:
        """Return the launches of a job. `truth` holds relative differences from the baseline, which
        is variant 0.
        """
        launches, place = [], 0
        for block in range(1, blocks + 1):
            order = list(range(variants))
            self.rng.shuffle(order)
            for variant in order:
                spread = noise.of(variant) * (4 if self.rng.random() < noise.tail else 1)
                level = math.log1p((truth or {}).get(variant, 0.0)) + self.rng.gauss(0, spread)
                level += math.log1p(noise.drift) * place / (variants * blocks)
                scale = 100 * math.exp(level)
                runs = tuple(scale * run for run in self.rng.choice(runs_pool(noise.run)))
                launches.append(Launch(variant, block, geometric_mean(runs), runs))
                place += 1
        return launches


def _measured_runs(rng: random.Random, noise: float) -> tuple[float, ...]:
    """Return the counted runs of one launch, stopped by the agent's rules."""
    runs: list[float] = []
    while True:
        runs.append(math.exp(rng.gauss(0, noise)))
        steady = judge_steadiness(runs, MEASURE)
        if decide(runs, 0, MEASURE, steady.warm_up) is not Decision.MORE:
            return tuple(runs[steady.warm_up if steady.is_steady else 0 :])


def estimates_of(launches: Sequence[Launch]) -> dict[str, RatioEstimate]:
    """Return the estimates of method 2."""
    values = [LaunchValue(str(launch.variant), launch.block, launch.value) for launch in launches]
    return cell_estimates(values, "0")


def judged(launches: Sequence[Launch], question: Question) -> dict[str, Judgement]:
    """Return the judgements of method 2."""
    return judge_cell(estimates_of(launches), question, True, Outlook(), with_needs=False)


def method_1(launches: Sequence[Launch], margin: float = 0.0) -> dict[str, Verdict]:
    """Return the verdicts of method 1: each row alone, by its blocks."""
    table = {(launch.variant, launch.block): launch.value for launch in launches}
    found = {}
    for variant in sorted({launch.variant for launch in launches} - {0}):
        pairs = [
            (value, table[0, block]) for (own, block), value in table.items() if own == variant
        ]
        estimate = pair_estimate(pairs)
        assert estimate is not None
        found[str(variant)] = _plain_verdict(estimate, margin)
    return found


def runs_as_launches(launches: Sequence[Launch]) -> dict[str, Verdict]:
    """Return the verdicts of somebody who takes every run as independent."""
    runs: dict[int, list[float]] = {}
    for launch in launches:
        runs.setdefault(launch.variant, []).extend(launch.runs)
    found = {}
    for variant in sorted(runs.keys() - {0}):
        estimate = welch_estimate(runs[variant], runs[0])
        assert estimate is not None
        found[str(variant)] = _plain_verdict(estimate, 0.0)
    return found


def _plain_verdict(estimate: RatioEstimate, margin: float) -> Verdict:
    interval = ratio_interval(estimate, CONFIDENCE)
    if interval.is_inside(-math.log1p(margin), math.log1p(margin)):
        return Verdict.EQUIVALENT
    if interval.low > 0:
        return Verdict.FASTER
    return Verdict.SLOWER if interval.high < 0 else Verdict.INCONCLUSIVE


def is_false(verdicts: Mapping[str, Verdict]) -> bool:
    """Return True if any verdict claims a difference."""
    return any(verdict in (Verdict.FASTER, Verdict.SLOWER) for verdict in verdicts.values())


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: shares of jobs, as fractions of 1."""

    name: str
    share: float
    bound: float
    is_upper: bool
    method_1: float | None = None
    naive: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the share keeps its bound."""
        return self.share <= self.bound if self.is_upper else self.share >= self.bound

    def text(self) -> str:
        """Return the line of the table."""
        cells = "".join(
            f"{'' if value is None else f'{value * 100:.1f}':>9}"
            for value in (self.naive, self.method_1, self.share)
        )
        bound = f"{'≤' if self.is_upper else '≥'} {self.bound * 100:.1f}"
        return f"{self.name:<62}{cells}   {bound}{'' if self.holds else '  MISSED'}"


def _share(jobs: int, draw: Callable[[], bool | None]) -> float:
    """Return the share of jobs for which `draw` is true. None does not count."""
    found = [value for value in (draw() for _ in range(jobs)) if value is not None]
    return sum(found) / max(len(found), 1)


def false_family(name: str, jobs: int, blocks: int, noise: Noise, bound: float) -> Line:
    """Measure how often six equal variants get any false verdict, by three methods."""
    dice, counts = Dice(), [0, 0, 0]
    for _ in range(jobs):
        launches = dice.job(6, blocks, noise)
        question = Question(CONFIDENCE, 0.0)
        verdicts = {key: own.verdict for key, own in judged(launches, question).items()}
        for place, found in enumerate((verdicts, method_1(launches), runs_as_launches(launches))):
            counts[place] += is_false(found)
    shares = [count / jobs for count in counts]
    return Line(name, shares[0], bound, True, shares[1], shares[2])


def false_in_two_workloads(jobs: int) -> Line:
    """Measure false verdicts in a whole job of two workloads and six variants."""
    dice, counts = Dice(), [0, 0]
    question = Question(CONFIDENCE, 0.0, cells=2)
    for _ in range(jobs):
        cells = [dice.job(6, 5, Noise(0.03)) for _ in range(2)]
        counts[0] += any(
            is_false({key: own.verdict for key, own in judged(cell, question).items()})
            for cell in cells
        )
        counts[1] += any(is_false(method_1(cell)) for cell in cells)
    name = "A/A, 2 workloads × 6 variants, 5 launches: any false verdict"
    return Line(name, counts[0] / jobs, 0.06, True, counts[1] / jobs)


def all_rows_covered(jobs: int, blocks: int) -> Line:
    """Measure how often the intervals of all rows of a cell contain the true ratios."""
    dice = Dice()

    def draw() -> bool:
        estimates = estimates_of(dice.job(6, blocks, Noise(0.03, 0.03))).values()
        return all(abs(own.difference) <= own.half_width(CONFIDENCE) for own in estimates)

    return Line(f"all rows of a cell covered, {blocks} launches", _share(jobs, draw), 0.94, False)


def found_verdict(
    name: str, jobs: int, job: tuple[int, int, Noise], truth: float, wanted: Verdict, bound: float
) -> Line:
    """Measure how often variant 1 gets a verdict. At a difference of the margin it must not."""
    dice, counts = Dice(), [0, 0]
    variants, blocks, noise = job
    for _ in range(jobs):
        launches = dice.job(variants, blocks, noise, dict.fromkeys(range(1, variants), truth))
        counts[0] += judged(launches, Question(CONFIDENCE, 0.02))["1"].verdict is wanted
        counts[1] += method_1(launches, 0.02)["1"] is wanted
    is_upper = bound < 0.1
    return Line(name, counts[0] / jobs, bound, is_upper, counts[1] / jobs)


def resolved_by_needs(jobs: int, truth: float) -> Line:
    """Measure how often `launches_80` more launches resolve a row that three left open."""
    dice, question = Dice(), Question(CONFIDENCE, 0.02)

    def draw() -> bool | None:
        launches = dice.job(2, 3, Noise(0.03), {1: truth})
        first = judge_cell(estimates_of(launches), question, True, Outlook())["1"]
        if first.needs is None:
            return None
        more = dice.job(2, first.needs.launches, Noise(0.03), {1: truth})
        later = [replace(launch, block=launch.block + 3) for launch in more]
        return judged([*launches, *later], question)["1"].verdict is not Verdict.INCONCLUSIVE

    name = f"resolved after launches_80 more, launch 3 %, truth {truth * 100:+.0f} %"
    return Line(name, _share(jobs, draw), 0.70, False)


def over_a_bridge(name: str, jobs: int, truth: float, bound: float) -> Line:
    """Measure verdicts on two sessions that differ by 2 %, with a variant common to both."""
    dice, question = Dice(), Question(CONFIDENCE, 0.0)

    def draw() -> bool:
        before, after = (
            estimates_of(dice.job(2, 5, Noise(0.01), {1: change}))["1"] for change in (0.0, truth)
        )
        found = judge_cell({"1": BridgeEstimate(after, before)}, question, True, Outlook())
        return found["1"].verdict is not Verdict.INCONCLUSIVE

    return Line(name, _share(jobs, draw), bound, bound < 0.5)


def lines(jobs: int) -> list[Line]:
    """Return all lines of the table."""
    few = max(jobs // 4, 100)  # of the slow ones
    one_noisy, noisy_baseline = (0.01, 0.07, *[0.01] * 4), (0.07, *[0.01] * 5)
    two_noisy = (0.03, 0.07, 0.05, 0.01, 0.01, 0.01)
    family = [
        ("A/A, 6 variants, launch 3 %", Noise(0.03), (0.06, 0.06, 0.06)),
        ("  launch 1 %, run 3 %, drift 8 %", Noise(0.01, 0.03, 0.08), (0.06, 0.06, 0.06)),
        ("  launch 7 %", Noise(0.07), (0.06, 0.06, 0.06)),
        ("  one variant at 7 %, rest 1 %", Noise(one_noisy), (0.07, 0.07, 0.06)),
        ("  baseline at 7 %, rest 1 %", Noise(noisy_baseline), (0.12, 0.12, 0.06)),
        ("  baseline 3 %, variants 7, 5, 1 %", Noise(two_noisy), (0.12, 0.12, 0.06)),
        ("  one launch in ten is four times as noisy", Noise(0.02, tail=0.1), (0.06, 0.06, 0.06)),
    ]
    table = [
        false_family(f"{name}: any false, {blocks} launches", jobs, blocks, noise, bound)
        for name, noise, bounds in family
        for blocks, bound in zip((3, 5, 10), bounds, strict=True)
    ]
    table.append(false_in_two_workloads(jobs))
    table += [all_rows_covered(jobs, blocks) for blocks in (3, 5, 10)]
    for blocks, launch, bound in ((3, 0.01, 0.5), (5, 0.01, 0.99), (10, 0.03, 0.7)):
        name = f"FASTER at +5 %, 6 variants, launch {launch * 100:.0f} %, {blocks} launches"
        job = (6, blocks, Noise(launch))
        table.append(found_verdict(name, jobs, job, 0.05, Verdict.FASTER, bound))
    for variants in (2, 6):
        for blocks, bound in ((5, 0.38), (10, 0.93)):
            name = f"EQUIVALENT at 0, {variants} variants, launch 1 %, {blocks} launches"
            job = (variants, blocks, Noise(0.01))
            table.append(found_verdict(name, jobs, job, 0.0, Verdict.EQUIVALENT, bound))
    for variants in (2, 6):
        name = f"EQUIVALENT at the margin, {variants} variants, launch 1 %, 10 launches"
        job = (variants, 10, Noise(0.01))
        table.append(found_verdict(name, jobs, job, 0.02, Verdict.EQUIVALENT, 0.06))
    table += [resolved_by_needs(few, truth) for truth in (0.0, 0.02, 0.05)]
    table.append(over_a_bridge("two sessions 2 % apart, bridge: false", jobs, 0.0, 0.06))
    table.append(over_a_bridge("two sessions 2 % apart, bridge: +5 % found", jobs, 0.05, 0.9))
    return table


def main() -> int:
    """Print the table; return 1 if a bound is missed."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--jobs", type=int, default=4000, help="jobs for each line (default: 4000)")
    options = parse.parse_args()
    began_s = time.process_time()
    table = lines(options.jobs)
    print(f"{'% of jobs':<62}{'naive':>9}{'method 1':>9}{'now':>9}   must")
    print("\n".join(line.text() for line in table))
    print(f"\n{options.jobs} jobs for each line, {time.process_time() - began_s:.0f} s of CPU time")
    return 0 if all(line.holds for line in table) else 1


if __name__ == "__main__":
    sys.exit(main())
