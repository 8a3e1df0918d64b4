"""Defines the facts about a run that its gates judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Holds the facts about one run that its gates judge. All values are plain JSON values, so
    `RunFacts(**json.loads(line))` reads them back.

    Seconds are wall seconds of the client and never scaled, because they show whether the client
    kept up. None means that the value is not known.
    """

    requests_ok: int
    requests_failed: int
    error_kinds: Mapping[str, int]  # of the failed requests
    finish_reasons: Mapping[str, int]  # of the successful requests, as the server named them
    completion_tokens_min: int  # over the successful requests, as the server counted them
    completion_tokens_max: int
    zero_token_requests: int
    # |the client's count - the server's| / the server's, over the run
    client_count_mismatch: float | None
    # cached prompt tokens beyond those of the chat template / prompt tokens
    cached_token_ratio: float | None
    # mean requests in flight over the steady part; 0 unless the loop is closed
    achieved_concurrency: float
    dispatch_delay_p99_s: float  # real send - intended send
    loop_lag_p99_s: float  # how late the client's event loop woke up
    speculation: bool  # whether the variant requests it
    accept_length: float | None  # output tokens per verify step, bonus token included
    # open loop, second half of the arrivals: answers that ended / requests that were due; None also
    # if there were too few
    answered_share: float | None
    # prompt tokens that the plan shares with an earlier request / prompt tokens; None: no plan
    planned_cached_ratio: float | None = None
    off_length: int = 0  # successful answers that do not have exactly the requested length
    # the most that the shards of this run can drive, at one token per read; None: not calibrated
    client_capacity_tok_s: float | None = None
    # share of that capacity, or else of the client's cores, that this run took
    client_use: float | None = None
    # load from several hosts: how far apart its processes may have started, by the known accuracy
    # of their clocks
    start_skew_s: float = 0.0
    client_cpu_s: float = 0.0  # CPU time of the client's processes, from start to last answer
    client_decode_s: float = 0.0  # time that they then took to decode what was left
    # from the last event with output to the end of the answer; the share is of the end-to-end times
    silent_tail_p99_s: float = 0.0
    silent_tail_share: float = 0.0
    # what the server said to the first failed request of each kind, and of each HTTP status
    error_examples: Mapping[str, str] = field(default_factory=dict)
    # tokens of the successful answers and of their prompts, as the server reported them
    output_tokens: int = 0
    prompt_tokens: int | None = None  # None: not reported
    # what the server counted while the run lasted, for all of its clients; None: it shows no such
    # counter, or restarted
    counted_output_tokens: float | None = None
    counted_prompt_tokens: float | None = None
    counted_requests: float | None = None
