"""Implements the gates that compare a run's number of tokens with three numbers: the requested
number, the client's own count, and the server's count for all of its clients.
"""

from __future__ import annotations

from collections.abc import Iterator

from fleet_agent.core.run_facts import RunFacts
from fleet_protos.trial_types import Gate, GateEffect, Workload
from fleet_protos.workload_rules import fixes_lengths

TOKEN_MISMATCH_MAX = 0.02
# a share of the run's own tokens: so much work of others changes a rate by about as much
FOREIGN_TOKENS_MAX = 0.01


def token_count_gates(facts: RunFacts, workload: Workload) -> Iterator[Gate]:
    """Yield the gates that the token counts of a run trip."""
    yield from _length(facts, workload)
    yield from _own_count(facts)
    yield from _server_count(facts)


def _length(facts: RunFacts, workload: Workload) -> Iterator[Gate]:
    if facts.zero_token_requests:
        yield _void(
            "zero_tokens",
            f"{facts.zero_token_requests} of {facts.requests_ok} answers had no token",
        )
    if not facts.requests_ok or not fixes_lengths(workload):
        return
    other = ", ".join(
        f"{count} × {reason}"
        for reason, count in sorted(facts.finish_reasons.items())
        if reason != "length"
    )
    reasons = f"; finish reasons other than length: {other}" if other else ""
    least, most = facts.completion_tokens_min, facts.completion_tokens_max
    if not workload.output_tokens:  # each answer has its own length
        if other or facts.off_length:
            message = (
                f"{facts.off_length} of {facts.requests_ok} answers do not have the requested "
                "length"
            )
            yield _void("short_output", message + reasons)
    elif other or not least == most == workload.output_tokens:
        message = f"{workload.output_tokens} tokens requested, {least} to {most} received"
        yield _void("short_output", message + reasons)


def _own_count(facts: RunFacts) -> Iterator[Gate]:
    if facts.client_count_mismatch is None:
        yield _flag(
            "token_count_unchecked",
            "the client could not count the tokens, so the server's count is not checked",
        )
    elif not facts.client_count_mismatch <= TOKEN_MISMATCH_MAX:
        yield _void(
            "token_count_mismatch",
            f"the token counts of client and server differ by "
            f"{_percent(facts.client_count_mismatch)}",
        )


def _server_count(facts: RunFacts) -> Iterator[Gate]:
    """Yield a gate if the server counted tokens of other clients during the run. A run with failed
    requests is not compared: it is void anyway, and the server may have counted these requests.
    """
    if facts.requests_failed or not facts.requests_ok:
        return
    if facts.counted_output_tokens is None:
        yield _flag(
            "foreign_requests_unknown",
            "the server shows no counters in /metrics, so requests of other clients would not be "
            "noticed",
        )
        return
    output = facts.counted_output_tokens - facts.output_tokens
    prompt = (
        0.0
        if facts.counted_prompt_tokens is None or facts.prompt_tokens is None
        else facts.counted_prompt_tokens - facts.prompt_tokens
    )
    if output <= 0 and prompt <= 0:  # not so for a value that is not a number
        return
    message = (
        "other clients used the server during the run: it counted "
        f"{facts.counted_output_tokens:.0f} output tokens, {facts.output_tokens} are of this run"
    )
    if prompt > 0:
        message += f"; {facts.counted_prompt_tokens:.0f} prompt tokens, {facts.prompt_tokens} of it"
    if facts.counted_requests is not None and facts.counted_requests > facts.requests_ok:
        message += f"; {facts.counted_requests:.0f} requests, {facts.requests_ok} of it"
    is_little = (
        output <= FOREIGN_TOKENS_MAX * facts.output_tokens
        and prompt <= FOREIGN_TOKENS_MAX * (facts.prompt_tokens or 0)
    )
    yield (_flag if is_little else _void)("foreign_requests", message)


def _void(code: str, message: str) -> Gate:
    return Gate(code, GateEffect.VOID_RUN, message)


def _flag(code: str, message: str) -> Gate:
    return Gate(code, GateEffect.FLAG, message)


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.1f} %"
