"""Plans what each request of a run contains: its prompt and the number of output tokens. The plan
is the same for every variant.
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
from fleet_protos.workload_rules import parts_of

SALT: Final = "salt"
FLUSH: Final = "flush"
SHARED: Final = "shared"
PLAN_SAMPLE: Final = 1000
MAX_THINK_MEANS: Final = 10.0  # longest think time, in multiples of the mean
_NO_FILES: Final[Mapping[str, Trace | Prompts]] = {}


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """Holds one planned request. `digest` is 16 hex digits of the prompt. Exactly `output_tokens`
    tokens are requested.
    """

    prompt: Content
    digest: str
    output_tokens: int


class PromptSource(Protocol):
    """Returns the prompts of a run. A source is a plain value, so that it can be sent to shards."""

    def prompt(self, number: int) -> Content:
        """Return the prompt of request `number` without its salt."""
        ...


@dataclass(frozen=True, slots=True)
class ListedPrompts:
    """Returns the prompts of a set or a file in the order in which they are sent. After the last
    prompt, the first prompt is sent again.
    """

    prompts: tuple[Content, ...]

    def prompt(self, number: int) -> Content:
        return self.prompts[number % len(self.prompts)]


@dataclass(frozen=True, slots=True)
class RandomPrompts:
    """Returns random token ids as prompts, with the lengths of the workload. The ids mean nothing,
    so a model may answer with repetitions.
    """

    seed: int
    tokens: int  # of every prompt; 0: drawn from `lengths`
    lengths: Lengths
    end_id: int

    def prompt(self, number: int) -> Content:
        count = self.tokens or length_at_share(
            self.lengths, uniform_share(self.seed, "input", number)
        )
        return random_ids(f"{self.seed}/{number}", count, self.end_id)


@dataclass(frozen=True, slots=True)
class RequestKind:
    """Defines one kind of request of a run: the source of its prompts and the length of its
    answers.
    """

    source: PromptSource
    output_tokens: int  # of every answer; 0: drawn from `output`, or else taken from `outputs`
    output: Lengths
    prefix: SharedPrefix
    outputs: tuple[int, ...] = ()  # output tokens of each answer of a trace


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """Computes every request of a run from its number, which starts at 0. A plan is a plain value:
    it is sent to each shard, and a reader of the results can compute the same requests again.
    """

    draw: PromptDraw
    cache: str
    kinds: tuple[RequestKind, ...]
    cumulative_weights: tuple[float, ...]  # the upper end of each kind's share of 0..1, ascending
    end_id: int = END_ID  # random token ids are below this
    turns: int = 1  # session n is the requests `n * turns` to `(n + 1) * turns - 1`

    def planned_request(self, number: int, history: Messages = ()) -> PlannedRequest:
        """Return request `number`. `history` contains the earlier messages of its session, with the
        answers.

        Takes about 5 µs for a prompt from a list, and about 0.1 µs per token for a generated
        prompt.
        """
        prompt = self._unsalted(number, history)
        if self.cache != SHARED:
            prompt = with_leading_text(prompt, self._salt(number), self.end_id)
        return PlannedRequest(prompt, content_digest(prompt), self.output_length(number))

    def extend_history(self, number: int, history: Messages, answer: str) -> Messages:
        """Return `history` with the prompt of request `number` and its answer added."""
        return (*messages_of(self._unsalted(number, history)), ("assistant", answer))

    def think_s(self, number: int, mean_s: float) -> float:
        """Return the pause in seconds before request `number` of a session.

        Pauses are exponentially distributed, at most MAX_THINK_MEANS times the mean, and the same
        in every run.
        """
        return (
            mean_s * min(MAX_THINK_MEANS, -log(1 - uniform_share(self.draw.seed, "think", number)))
            if mean_s
            else 0.0
        )

    def kind(self, number: int) -> RequestKind:
        """Return the kind of request `number`. It is the same in every run and for all requests of
        a session. The weights decide how frequent each kind is.
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
        if kind.prefix.groups:  # the salt makes what follows the shared beginning unique
            session = self._first_of_session(number) // self.turns
            group = f"group/{self.draw.seed}/{session % kind.prefix.groups}"
            return with_shared_beginning(
                with_leading_text(prompt, salt(self.draw, number), self.end_id),
                group,
                kind.prefix.tokens,
                self.end_id,
            )
        return prompt

    def _salt(self, number: int) -> str:
        """Return the salt of request `number`: its own with `cache: salt`, the salt of its session
        if only requests of one session share a beginning, else the salt of the run.
        """
        if self.cache == SALT:
            return salt(self.draw, number)
        apart = self.turns > 1 and not self.kind(number).prefix.groups
        return salt(self.draw, self._first_of_session(number)) if apart else run_salt(self.draw)

    def output_length(self, number: int) -> int:
        """Return the number of output tokens of request `number`, which is the same in each run."""
        kind = self.kind(number)
        if kind.output_tokens or not kind.outputs or kind.output.distribution:
            return kind.output_tokens or length_at_share(
                kind.output, uniform_share(self.draw.seed, "output", number)
            )
        return kind.outputs[number % len(kind.outputs)]

    def planned_cached_share(self, requests: int) -> float | None:
        """Return the share of prompt tokens that the prefix cache can serve, because an earlier
        request of the run begins with the same text. Return None if the share cannot be computed.

        The share is computed over the first `requests` requests, at most PLAN_SAMPLE. Texts are
        measured in characters, because the server's tokenizer is not known here.
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
    """Return the plan for a run of the workload. `files` maps refs to the traces and prompts that
    the workload names.

    Raises ValueError for an unknown name, or if the trial lacks a file.
    """
    parts, end_id = parts_of(workload), workload.vocabulary or END_ID
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
    for kind in kinds:  # build one request of each kind, to find errors before the run
        replace(plan, kinds=(kind,)).planned_request(0)
    return plan


def _replay_kind(workload: Workload, files: Mapping[str, Trace | Prompts]) -> RequestKind:
    trace = files.get(workload.trace)
    if not isinstance(trace, Trace):
        raise ValueError(
            f"workload {workload.name!r}: the trial lacks the file of its trace {workload.trace}"
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
