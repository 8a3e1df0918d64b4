"""Validates the events of one agent. Invalid or too large events are logged and dropped."""

from __future__ import annotations

import logging
from collections import Counter

from google.protobuf import json_format

from fleet_controller.core.event_rules import (
    LARGEST_ATTEMPT_BYTES,
    LARGEST_EVENT_BYTES,
    event_error,
    sanitize_event,
)
from fleet_protos.codec import from_proto
from fleet_protos.escape import escape_to_one_line
from fleet_protos.events import Event
from fleet_protos.v1 import trial_pb2

log = logging.getLogger(__name__)

_MOST_ATTEMPTS = 10_000
_LARGEST_JUMP = 1000  # events that were appended since the agent was asked for its newest number
_MOST_LOG_LINES = 20  # log lines about rejected events of one connection


class EventValidator:
    """Validates the events of one connection."""

    def __init__(self, agent: str, last_sequence: int) -> None:
        """Begin after the event with this number, the newest that is known of the agent."""
        self._agent = agent
        self._last_sequence = last_sequence
        self._received_bytes: Counter[tuple[str, int]] = Counter()
        self._logged = 0

    def validate(self, message: trial_pb2.Event) -> Event | None:
        """Return the event without its invalid parts, or None if the whole event is rejected."""
        if why := self._sequence_error(message.sequence) or self._size_error(message):
            self._log_rejected(why)
            return None
        try:
            event = from_proto(Event, message)
        except (ValueError, json_format.Error) as error:  # a number that JSON cannot hold
            self._log_rejected(f"event {message.sequence} cannot be read: {error}")
            return None
        if why := event_error(event):
            self._log_rejected(why)
            return None
        event, refused = sanitize_event(event)
        for why in refused:
            self._log_rejected(why)
        return event

    def _sequence_error(self, sequence: int) -> str:
        """An agent numbers its events without a gap. A number far ahead would hide all events until
        the agent reaches it.
        """
        if sequence > self._last_sequence + _LARGEST_JUMP:
            return f"the number of an event jumps from {self._last_sequence} to {sequence}"
        self._last_sequence = max(self._last_sequence, sequence)
        return ""

    def _size_error(self, message: trial_pb2.Event) -> str:
        size, key = message.ByteSize(), (message.trial_id[:300], message.attempt)
        if size > LARGEST_EVENT_BYTES:
            return (
                f"event {message.sequence} has {size} bytes, and the limit is {LARGEST_EVENT_BYTES}"
            )
        if len(self._received_bytes) >= _MOST_ATTEMPTS:
            self._received_bytes.clear()
        self._received_bytes[key] += size
        if self._received_bytes[key] > LARGEST_ATTEMPT_BYTES:
            return (
                f"{key[0]!a}, attempt {key[1]}: more than {LARGEST_ATTEMPT_BYTES} bytes of events"
            )
        return ""

    def _log_rejected(self, why: str) -> None:
        self._logged += 1
        if self._logged <= _MOST_LOG_LINES:
            more = (
                "; further rejected events of this connection are not logged"
                if self._logged == _MOST_LOG_LINES
                else ""
            )
            log.warning(
                "rejected data from the agent at %s: %s%s",
                self._agent,
                escape_to_one_line(why)[:500],
                more,
            )
