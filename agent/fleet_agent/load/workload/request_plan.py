"""Owns what each request of a run asks: its prompt and how many tokens its answer has. Pure; the
same for every variant, sends nothing.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import log
from typing import Final, Protocol

from fleet_agent.load.workload.lengths import length_at_share, uniform_share
from fleet_agent.load.workload.prompt_content import (
    END_ID,
    Content,
    Messages,
    content_digest,
    content_size,
    messages_of,
    random_ids,
    with_leading_text,
    with_shared_beginning,
)
from fleet_agent.load.workload.prompts import RANDOM, PromptDraw, prompts_in_order, run_salt, salt
from fleet_agent.load.workload.trace_prompts import TracePrompts
from fleet_protos.attachment import Prompts, Trace
from fleet_protos.trial_types import Lengths, Part, SharedPrefix, Workload

SALT: Final = "salt"
FLUSH: Final = "flush"
SHARED: Final = "shared"
PLAN_SAMPLE: Final = 1000
MAX_THINK_MEANS: Final = 10.0  # of the mean think time, that one may last
_NO_FILES: Final[Mapping[str, Trace | Prompts]] = {}


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request. `digest`: 16 hex digits of its prompt; `output_tokens`: exactly so many are
    asked for.
    """

    prompt: Content
    digest: str
    output_tokens: int


class PromptSource(Protocol):
    """Where prompts come from: a value, so that it goes to shards."""

    def prompt(self, number: int) -> Content:
        """What request `number` asks, before its salt."""
        ...


@dataclass(frozen=True, slots=True)
class ListedPrompts:
    """Prompts of a set or a file, in the order in which they are asked."""

    prompts: tuple[Content, ...]

    def prompt(self, number: int) -> Content:
        """See `Source`; from the beginning again after the last."""
        return self.prompts[number % len(self.prompts)]


@dataclass(frozen=True, slots=True)
class RandomPrompts:
    """Random token ids, as many as the lengths say. Text that means nothing: a server may answer it
    in loops.
    """

    seed: int
    tokens: int  # of every prompt; 0: `lengths` says
    lengths: Lengths
    end_id: int

    def prompt(self, number: int) -> Content:
        """See `Source`."""
        count = self.tokens or length_at_share(
            self.lengths, uniform_share(self.seed, "input", number)
        )
        return random_ids(f"{self.seed}/{number}", count, self.end_id)


@dataclass(frozen=True, slots=True)
class RequestKind:
    """One kind of requests of a run."""

    source: PromptSource
    output_tokens: int  # of every answer; 0: `output` says, or else `outputs`
    output: Lengths
    prefix: SharedPrefix
    outputs: tuple[int, ...] = ()  # of a trace: of each answer


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """All requests of a run, by number from 0. A value: it goes to each shard, and whoever has it
    can ask again what was asked.
    """

    draw: PromptDraw
    cache: str
    kinds: tuple[RequestKind, ...]
    cumulative_weights: tuple[float, ...]  # of each kind's share of 0..1, ascending
    end_id: int = END_ID  # random token ids are below it
    turns: int = 1  # of a session: requests `n * turns` to `(n + 1) * turns - 1` follow one another

    def planned_request(self, number: int, history: Messages = ()) -> PlannedRequest:
        """Request `number`, after what was `said` in its session, the answers included.

        Takes some 5 µs for a prompt that lies ready, and some 0.1 µs a token for one that is made.
        """
        prompt = self._unsalted(number, history)
        if self.cache != SHARED:
            prompt = with_leading_text(prompt, self._salt(number), self.end_id)
        return PlannedRequest(prompt, content_digest(prompt), self.output_length(number))

    def extend_history(self, number: int, history: Messages, answer: str) -> Messages:
        """What was said in a session once request `number` has its answer."""
        return (*messages_of(self._unsalted(number, history)), ("assistant", answer))

    def think_s(self, number: int, mean_s: float) -> float:
        """What passes before request `number` of a session: exponential, at most ten times the
        mean, the same in every run.
        """
        return (
            mean_s * min(MAX_THINK_MEANS, -log(1 - uniform_share(self.draw.seed, "think", number)))
            if mean_s
            else 0.0
        )

    def kind(self, number: int) -> RequestKind:
        """Which kind request `number` is: the same in every run and all through a session, each
        kind as often as its weight says.
        """
        drawn = (
            uniform_share(self.draw.seed, "kind", self._first_of_session(number))
            if len(self.kinds) > 1
            else 0.0
        )
        return self.kinds[bisect(self.cumulative_weights, drawn)]

    def _first_of_session(self, number: int) -> int:
        return number - number % self.turns

    def _unsalted(self, number: int, history: Messages) -> Content:
        kind = self.kind(number)
        prompt = kind.source.prompt(number)
        if history:
            return (*history, messages_of(prompt)[-1])
        if kind.prefix.groups:  # the salt keeps apart what follows the shared beginning
            group = f"group/{self.draw.seed}/{self._first_of_session(number) // self.turns % kind.prefix.groups}"
            return with_shared_beginning(
                with_leading_text(prompt, salt(self.draw, number), self.end_id),
                group,
                kind.prefix.tokens,
                self.end_id,
            )
        return prompt

    def _salt(self, number: int) -> str:
        """Of the run where requests share beginnings, of the session where only its own turns do,
        else of the request.
        """
        if self.cache == SALT:
            return salt(self.draw, number)
        apart = self.turns > 1 and not self.kind(number).prefix.groups
        return salt(self.draw, self._first_of_session(number)) if apart else run_salt(self.draw)

    def output_length(self, number: int) -> int:
        """Output tokens that request `number` asks for: the same in each run."""
        kind = self.kind(number)
        if kind.output_tokens or not kind.outputs or kind.output.distribution:
            return kind.output_tokens or length_at_share(
                kind.output, uniform_share(self.draw.seed, "output", number)
            )
        return kind.outputs[number % len(kind.outputs)]

    def planned_cached_share(self, requests: int) -> float | None:
        """Of all prompt tokens of so many requests, those that begin as an earlier request of the
        run did; None when none is to be found.

        By the sizes of texts, since nobody here knows the server's tokens; over the first
        PLAN_SAMPLE requests.
        """
        sample = min(requests, PLAN_SAMPLE)
        if self.cache not in (FLUSH, SHARED) or not sample or self.turns > 1:
            return None
        if isinstance(self.kinds[0].source, TracePrompts):
            return self.kinds[0].source.shared_beginning_share(sample)
        return self._share_of_groups(sample)

    def _share_of_groups(self, sample: int) -> float | None:
        total = shared = 0
        seen: set[tuple[SharedPrefix, int]] = set()
        for number in range(sample):
            prefix, size = (
                self.kind(number).prefix,
                content_size(self.planned_request(number).prompt),
            )
            total += size
            if prefix.groups:
                group = (prefix, number % prefix.groups)
                shared += (
                    size - content_size(self.kind(number).source.prompt(number))
                    if group in seen
                    else 0
                )
                seen.add(group)
        return shared / total if seen else None


def build_request_plan(
    workload: Workload, draw: PromptDraw, files: Mapping[str, Trace | Prompts] = _NO_FILES
) -> RequestPlan:
    """What a run of the workload asks; `files` are those that it names, by ref. Raises ValueError
    for what is not known or not there.
    """
    parts, end_id = workload.parts, workload.vocabulary or END_ID
    kinds = (
        (_replay_kind(workload, files),)
        if workload.trace
        else tuple(_kind(part, draw, files, end_id) for part in parts)
    )
    total_weight = sum(part.weight for part in parts)
    ends = tuple(accumulate(part.weight / total_weight for part in parts))
    plan = RequestPlan(
        draw, workload.cache or SALT, kinds, (*ends[:-1], 1.0), end_id, max(1, workload.turns)
    )
    for kind in kinds:  # the first request of each may show that it cannot be asked
        replace(plan, kinds=(kind,)).planned_request(0)
    return plan


def _replay_kind(workload: Workload, files: Mapping[str, Trace | Prompts]) -> RequestKind:
    trace = files.get(workload.trace)
    if not isinstance(trace, Trace):
        raise ValueError(
            f"workload {workload.name!r}: its trace {workload.trace} did not come with the trial"
        )
    source = TracePrompts(trace, workload.vocabulary or END_ID if workload.prompts == RANDOM else 0)
    return RequestKind(
        source, workload.output_tokens, workload.output, SharedPrefix(), trace.output_tokens
    )


def _kind(
    part: Part, draw: PromptDraw, files: Mapping[str, Trace | Prompts], end_id: int
) -> RequestKind:
    if part.prompts == RANDOM:
        source: PromptSource = RandomPrompts(draw.seed, part.input_tokens, part.input, end_id)
    else:
        source = ListedPrompts(prompts_in_order(part.prompts, draw.seed, files))
    return RequestKind(source, part.output_tokens, part.output, part.prefix)
