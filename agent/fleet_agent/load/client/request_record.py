"""Defines the record of one measured request. A run stores its records as columns
(`results/request_columns.py`).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


class ErrorName:
    """Names the reason why a request failed. A failed request has exactly one reason, and never
    enters a metric.
    """

    CONNECT = "connect"  # no connection could be made
    HTTP_STATUS = "http_status"  # answered, but not with 200
    SERVER_ERROR = "server_error"  # an error object in a stream that began with 200
    RESET = "reset"  # the connection broke, or closed before any answer
    TRUNCATED = "truncated"  # the answer was cut off
    MALFORMED = "malformed"  # not HTTP/1.1, not SSE or not the JSON of this API
    NO_USAGE = "no_usage"  # complete, but the server did not report the number of tokens
    TIMEOUT = "timeout"  # never began, or still streaming at its deadline
    STALLED = "stalled"  # began, then silent for at least half of its timeout
    CANCELLED = "cancelled"  # ended by the client


@dataclass(frozen=True, slots=True)
class Response:
    """Holds what one answer contained. The time of an event is the perf_counter_ns of the read that
    completed it. None means that the server did not report a value.
    """

    status: int = 0  # 0: no answer arrived
    # of each event that carried output text
    chunk_ns: array[int] = field(default_factory=lambda: array("q"))
    # tokens of each of these events, if the server counts per event
    chunk_tokens: array[int] | None = None
    last_ns: int = 0  # of the last byte; 0: nothing arrived
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    verify_ct: int | None = None
    # The client's own count: token ids if there are any, otherwise chunks with output (at least one
    # token each).
    own_tokens: int = 0
    own_is_exact: bool = False  # True: token ids were counted
    finish_reason: str = ""
    text: str = ""
    error_kind: str = ""
    error_detail: str = ""

    @property
    def first_output_ns(self) -> int:
        """Return the time of the first event with output; 0 if no event had output."""
        return self.chunk_ns[0] if self.chunk_ns else 0

    @property
    def last_output_ns(self) -> int:
        """The time of the last event with output; 0 if there was none."""
        return self.chunk_ns[-1] if self.chunk_ns else 0


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Holds one request of a run: when it was due, when it was sent, and the answer. All times are
    perf_counter_ns.
    """

    number: int
    intended_ns: int
    sent_ns: int  # 0: never sent
    prompt_digest: str  # 16 hex digits
    response: Response
    asked_tokens: int = 0  # requested length of the answer; 0: no exact length was requested

    @property
    def ok(self) -> bool:
        """Return whether the whole answer arrived and the server reported its number of tokens."""
        return not self.response.error_kind

    @property
    def end_ns(self) -> int:
        """Return the time of the last byte of the answer. If nothing arrived, the time when the
        request was sent, or was due.
        """
        return max(self.response.last_ns, self.sent_ns, self.intended_ns)
