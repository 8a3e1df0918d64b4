"""Owns the frozen record of one request as it was measured; interprets nothing. A run keeps them as
columns (`columns.py`).
"""

from __future__ import annotations

from dataclasses import dataclass


class ErrorName:
    """Why a request failed. A request has one of these or none; one with any never becomes a
    number.
    """

    CONNECT = "connect"  # no connection could be made
    HTTP_STATUS = "http_status"  # answered, but not with 200
    SERVER_ERROR = "server_error"  # an error object inside a stream that began with 200
    RESET = "reset"  # the connection broke, or closed before any answer
    TRUNCATED = "truncated"  # the answer ended before its end
    MALFORMED = "malformed"  # not HTTP/1.1, not SSE or not the JSON of this API
    NO_USAGE = "no_usage"  # complete, but the server never said how many tokens
    TIMEOUT = "timeout"  # not complete at its deadline, though moving, or never begun
    STALLED = "stalled"  # begun, then silent for half of its deadline or longer
    CANCELLED = "cancelled"  # ended by us


@dataclass(frozen=True, slots=True)
class Response:
    """What one answer said. Times are perf_counter_ns of the read that completed the event; None:
    the server did not say.
    """

    status: int = 0  # 0: none came
    chunk_ns: tuple[int, ...] = ()  # of each event that carried output text
    chunk_tokens: tuple[int, ...] | None = (
        None  # tokens of each of them, where the server counts per event
    )
    last_ns: int = 0  # of the last byte; 0: none came
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    verify_ct: int | None = None
    # the client's own count: token ids seen, else chunks with output, which are at most as many as
    # tokens
    own_tokens: int = 0
    own_is_exact: bool = False  # True: token ids were counted
    finish_reason: str = ""
    text: str = ""
    error_kind: str = ""
    error_detail: str = ""

    @property
    def first_output_ns(self) -> int:
        """Of the first event that carried output; 0: none did."""
        return self.chunk_ns[0] if self.chunk_ns else 0


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request of a run: when it should have been sent, when it was, and what came back. All
    times perf_counter_ns.
    """

    number: int
    intended_ns: int
    sent_ns: int  # 0: never sent
    prompt_digest: str  # 16 hex digits
    response: Response
    asked_tokens: int = 0  # the answer was asked to have exactly so many; 0: it was free

    @property
    def ok(self) -> bool:
        """True when the whole answer came and the server counted its tokens."""
        return not self.response.error_kind

    @property
    def end_ns(self) -> int:
        """Of the last byte, or of the sending when nothing came back."""
        return max(self.response.last_ns, self.sent_ns, self.intended_ns)
