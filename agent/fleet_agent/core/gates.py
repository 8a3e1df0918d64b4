"""Implements the gates: named checks that flag or void a measured run.

docs/gates.md gives the reason and the source of each gate. A test compares it with `GATES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fleet_agent.core.request_failures import describe_failures
from fleet_agent.core.run_facts import RunFacts
from fleet_agent.core.token_count_gates import token_count_gates
from fleet_protos.trial_types import Gate, GateEffect, Measure, TrialSpec, Workload
from fleet_protos.workload_rules import is_open_loop, shares_cache

CACHED_RATIO_MAX = 0.01
CACHED_SHARE_MIN = 0.5  # of the prompt tokens that the workload planned to find in the cache
ACCEPT_LENGTH_MIN = 1.05
CONCURRENCY_SHORTFALL_MAX = 0.05
DISPATCH_DELAY_FLAG_S, DISPATCH_DELAY_VOID_S = 0.010, 0.050
LOOP_LAG_FLAG_S = 0.005
CLIENT_USE_MAX = 0.70
ANSWERED_SHARE_MIN = 0.8
START_SKEW_FLAG_S = 0.020
SILENT_TAIL_SHARE_MAX, SILENT_TAIL_MAX_S = 0.02, 0.020

# Code → the worst effect that it can have
GATES: Mapping[str, GateEffect] = {
    "requests_failed": GateEffect.VOID_RUN,
    "zero_tokens": GateEffect.VOID_RUN,
    "short_output": GateEffect.VOID_RUN,
    "token_count_mismatch": GateEffect.VOID_RUN,
    "token_count_unchecked": GateEffect.FLAG,
    "foreign_requests": GateEffect.VOID_RUN,
    "foreign_requests_unknown": GateEffect.FLAG,
    "prefix_cache_hit": GateEffect.VOID_RUN,
    "prefix_cache_unknown": GateEffect.FLAG,
    "prefix_cache_missed": GateEffect.FLAG,
    "spec_ineffective": GateEffect.VOID_TRIAL,
    "spec_unproved": GateEffect.FLAG,
    "client_limited": GateEffect.VOID_RUN,
    "rate_not_sustained": GateEffect.FLAG,
    "silent_tail": GateEffect.FLAG,
    "shared_host": GateEffect.FLAG,
    "load_start_skew": GateEffect.FLAG,
    "not_steady": GateEffect.FLAG,
}

# The `reasons` of `client_limited`: how a client can be the limit
CONCURRENCY, DISPATCH_DELAY, LOOP_LAG, CAPACITY = (
    "concurrency",
    "dispatch_delay",
    "loop_lag",
    "capacity",
)


def run_gates(facts: RunFacts, workload: Workload, measure: Measure) -> tuple[Gate, ...]:
    """Return the gates that a run trips, the worst effect first. Empty if the run trips no gate.

    A fact that is NaN trips its gate. The concurrency may be lower than requested by 5 %, or by
    `measure.precision` if that is more.
    """
    found = [
        *_requests(facts),
        *token_count_gates(facts, workload),
        *_cache(facts, workload),
        *_speculation(facts),
        *_client(facts, workload, measure),
        *_rate(facts, workload),
        *_start(facts),
        *_tail(facts),
    ]
    return tuple(sorted(found, key=lambda gate: -gate.effect))


def sharing_gates(spec: TrialSpec) -> tuple[Gate, ...]:
    """Return the flag for the runs of a trial that may share its host with other trials.

    The flag is set even if no other trial ran: nobody must take the run for one that was certainly
    undisturbed.
    """
    return (
        (_flag("shared_host", "the job lets other trials run on its hosts (hosts.share)"),)
        if spec.shared
        else ()
    )


def _requests(facts: RunFacts) -> Iterator[Gate]:
    if facts.requests_failed:
        kinds = describe_failures(facts.error_kinds, facts.error_examples)
        total = facts.requests_ok + facts.requests_failed
        yield _void(
            "requests_failed",
            f"{facts.requests_failed} of {total} requests failed{kinds}",
        )
    elif not facts.requests_ok:
        yield _void("requests_failed", "no request was answered")


def _cache(facts: RunFacts, workload: Workload) -> Iterator[Gate]:
    if facts.cached_token_ratio is None:
        yield _flag("prefix_cache_unknown", "the server does not report cached prompt tokens")
    elif shares_cache(workload):
        planned = facts.planned_cached_ratio
        if (
            planned
            and planned > CACHED_RATIO_MAX
            and not facts.cached_token_ratio >= planned * CACHED_SHARE_MIN
        ):
            message = (
                f"{_percent(facts.cached_token_ratio)} of the prompt tokens came from the prefix "
                f"cache, {_percent(planned)} could have: the cache is off, or too small for the "
                "prefixes that requests share"
            )
            yield _flag("prefix_cache_missed", message)
    elif not facts.cached_token_ratio <= CACHED_RATIO_MAX:
        message = (
            f"{_percent(facts.cached_token_ratio)} of the prompt tokens came from the prefix "
            "cache, which the workload does not plan"
        )
        yield _void("prefix_cache_hit", message)


def _speculation(facts: RunFacts) -> Iterator[Gate]:
    if not facts.speculation:
        return
    if facts.accept_length is None:
        yield _flag(
            "spec_unproved", "speculation was requested, but the server reports no accept length"
        )
    elif not facts.accept_length >= ACCEPT_LENGTH_MIN:
        message = (
            f"accept length {facts.accept_length:.3f}: speculation was requested but has no effect"
        )
        # the whole trial, since another run of this launch would show the same
        yield Gate("spec_ineffective", GateEffect.VOID_TRIAL, message)


def _client(facts: RunFacts, workload: Workload, measure: Measure) -> Iterator[Gate]:
    """Yield one gate if the client was the limit. The gate has all reasons, and the worst of their
    effects.
    """
    # a failed request, which voids the run anyway, leaves its slot early
    all_answered = facts.requests_ok and not facts.requests_failed
    limits = [
        *(_concurrency_limit(facts, workload, measure) if all_answered else ()),
        *_dispatch_limit(facts, workload),
    ]
    if not facts.loop_lag_p99_s <= LOOP_LAG_FLAG_S:
        limits.append(
            (
                LOOP_LAG,
                GateEffect.FLAG,
                f"the client's event loop woke up {_ms(facts.loop_lag_p99_s)} late (p99)",
            )
        )
    limits += _capacity_limit(facts)
    if limits:
        effect = max(effect for _, effect, _ in limits)
        message = "; ".join(text for _, _, text in limits)
        yield Gate(
            "client_limited",
            effect,
            f"the client was the limit: {message}",
            tuple(reason for reason, _, _ in limits),
        )


def _rate(facts: RunFacts, workload: Workload) -> Iterator[Gate]:
    """Flag an open loop in which the queue of requests grows to the end of the run.

    The latencies then depend on how long the run was, and the measured rate is the maximum rate of
    the server.
    """
    if (
        workload.rate_per_s
        and facts.answered_share is not None
        and not facts.answered_share >= ANSWERED_SHARE_MIN
    ):
        message = (
            f"{_percent(facts.answered_share)} as many answers as requests in the second half of "
            f"the arrivals: the server does not keep up with {workload.rate_per_s:g}/s, or the run "
            "is too short"
        )
        yield _flag("rate_not_sustained", message)


def _start(facts: RunFacts) -> Iterator[Gate]:
    if not facts.start_skew_s <= START_SKEW_FLAG_S:
        skew = _ms(facts.start_skew_s)
        yield _flag(
            "load_start_skew", f"the load hosts may have started to send as much as {skew} apart"
        )


def _tail(facts: RunFacts) -> Iterator[Gate]:
    """Flag answers that went on after their last output: their end-to-end times, and with them the
    throughput, include silence.
    """
    if not (
        facts.silent_tail_share <= SILENT_TAIL_SHARE_MAX
        or facts.silent_tail_p99_s <= SILENT_TAIL_MAX_S
    ):
        yield _flag(
            "silent_tail",
            f"answers ended up to {_ms(facts.silent_tail_p99_s)} (p99) after their last output: "
            f"{_percent(facts.silent_tail_share)} of the end-to-end time is such silence, which "
            "throughput includes and time per token does not",
        )


_Limit = tuple[str, GateEffect, str]  # reason, effect, what was observed


def _concurrency_limit(facts: RunFacts, workload: Workload, measure: Measure) -> Iterator[_Limit]:
    asked = min(workload.concurrency, workload.requests or workload.concurrency)
    tolerated = max(CONCURRENCY_SHORTFALL_MAX, measure.precision)
    if asked and not workload.think_s and not facts.achieved_concurrency >= asked * (1 - tolerated):
        yield (
            CONCURRENCY,
            GateEffect.VOID_RUN,
            f"{facts.achieved_concurrency:.2f} requests in flight, {asked} requested",
        )


def _dispatch_limit(facts: RunFacts, workload: Workload) -> Iterator[_Limit]:
    if is_open_loop(workload) and not facts.dispatch_delay_p99_s <= DISPATCH_DELAY_FLAG_S:
        late = not facts.dispatch_delay_p99_s <= DISPATCH_DELAY_VOID_S
        effect = GateEffect.VOID_RUN if late else GateEffect.FLAG
        yield (
            DISPATCH_DELAY,
            effect,
            f"requests were sent {_ms(facts.dispatch_delay_p99_s)} late (p99)",
        )


def _capacity_limit(facts: RunFacts) -> Iterator[_Limit]:
    """Flag a run that used too much of the client's capacity, as calibrated against a null server.

    Near its capacity, a client slows down before its loop lag shows this.
    """
    if facts.client_use is not None and not facts.client_use <= CLIENT_USE_MAX:
        most = facts.client_capacity_tok_s
        reference = (
            f"the {most:.0f} tok/s that the client can drive against a null server"
            if most
            else "the cores that the client can use"
        )
        used = _percent(facts.client_use)
        yield CAPACITY, GateEffect.FLAG, f"the run took {used} of {reference}"


def _void(code: str, message: str) -> Gate:
    return Gate(code, GateEffect.VOID_RUN, message)


def _flag(code: str, message: str) -> Gate:
    return Gate(code, GateEffect.FLAG, message)


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.1f} %"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
