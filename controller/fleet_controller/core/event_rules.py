"""Decides what the controller accepts from an agent: on which trials the agent may report, how long
a text may be, and which files it may name.

An attacker may have taken over the host of an agent. Such an agent can spoil the results of its own
trials, but nothing of another host.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from fleet_controller.core.trial_state import Attempt
from fleet_protos import events as ev
from fleet_protos.search_rules import CONCURRENCY, RATE
from fleet_protos.trial_types import Artifact, RunResult, Searched

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_AGENT_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
LARGEST_EVENT_BYTES = 4 << 20
LARGEST_ATTEMPT_BYTES = 64 << 20  # all events of one attempt together
LARGEST_ARTIFACT_BYTES = 16 << 30
_MOST_NUMBER = (1 << 63) - 1  # the largest integer of a database
_LONGEST_TEXT, _LONGEST_NAME = 64 << 10, 128
_MOST_ENTRIES = 5000
_LARGEST_VALUE = 1e15  # of a metric or a duration; no NaN is within it
_NAMES = ("failure_class", "workload", "rank", "phase", "code", "ended_by")
_TRIAL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,199}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def agent_info_error(agent_id: str, host: str, reported: Mapping[str, str]) -> str:
    """Return why an agent's description of itself is not acceptable. Return an empty text if it is
    acceptable.

    `reported` holds the labels and the fingerprint that the agent reports.
    """
    if not _AGENT_ID.fullmatch(agent_id) or not _HOST.fullmatch(host):
        shown_id, shown_host = agent_id[:80], host[:80]
        return f"its agent id {shown_id!a} or its host name {shown_host!a} is not valid"
    if len(reported) > 1000 or any(
        len(name) + len(value) > 4096 for name, value in reported.items()
    ):
        return "its labels and fingerprint are too large"
    return ""


def event_error(event: ev.Event) -> str:
    """Return why no agent of benchfleet can have sent this event. Return an empty text for a valid
    event.
    """
    if not 0 < event.sequence < _MOST_NUMBER // 2:
        return f"event number {event.sequence} is not valid"
    if not _TRIAL_ID.fullmatch(event.trial_id):
        return f"event {event.sequence} has the invalid trial id {event.trial_id[:60]!a}"
    if (
        not 0 < event.attempt < 1_000_000
        or not abs(event.time_unix_ns) < _MOST_NUMBER
        or not event.cause < _MOST_NUMBER
    ):
        return f"event {event.sequence} has a number that is out of range"
    if isinstance(event.body, ev.RunFinished) and not 0 < event.body.run.index < 1_000_000:
        return f"event {event.sequence} has the invalid run index {event.body.run.index}"
    return ""


def sanitize_event(event: ev.Event) -> tuple[ev.Event, tuple[str, ...]]:
    """Return the event with long texts cut and with files of other attempts removed. Return also a
    description of each removed file.
    """
    body: Any = event.body
    refused: tuple[str, ...] = ()
    if isinstance(body, ev.EvidenceCollected):
        kept = tuple(
            file for file in body.artifacts[:_MOST_ENTRIES] if not _artifact_error(file, event)
        )
        refused = tuple(
            _artifact_error(file, event) for file in body.artifacts[:20] if file not in kept
        )
        body = replace(body, artifacts=kept)
    if isinstance(body, ev.RunFinished) and (
        why := body.run.artifact.name and _artifact_error(body.run.artifact, event)
    ):
        body, refused = replace(body, run=replace(body.run, artifact=Artifact())), (why,)
    if isinstance(body, ev.RunFinished):
        body = replace(body, run=_drop_invalid_numbers(body.run))
    return replace(event, body=_truncate_value("", body, 0)), refused


def may_report(before: Attempt, agent_id: str, host: str, trial_host: str, newest: int) -> bool:
    """Return whether an agent may report on an attempt. Until an agent has accepted the attempt,
    the agent of its host may report. Afterwards, only the agent that accepted it may report.

    An attempt older than the newest may belong to another host than the trial does now. It decides
    nothing any more, so any host may report on it.
    """
    if before.agent_id:
        return before.agent_id == agent_id
    return host == trial_host or before.number < newest


def _artifact_error(file: Artifact, event: ev.Event) -> str:
    trial, _, rest = file.name.partition("/")
    attempt, _, name = rest.partition("/")
    if (
        trial != event.trial_id
        or attempt != str(event.attempt)
        or not _FILE.fullmatch(name)
        or name.endswith(".partial")
    ):
        return f"file {file.name[:100]!a} does not belong to {event.trial_id}/{event.attempt}"
    if not _DIGEST.fullmatch(file.sha256) or not 0 <= file.size_bytes <= LARGEST_ARTIFACT_BYTES:
        return f"file {file.name[:100]!a} has an invalid digest or size ({file.size_bytes} bytes)"
    return ""


def _drop_invalid_numbers(run: RunResult) -> RunResult:
    """Return the run without metrics that are not finite or too large to compute with. A duration
    or time scale that cannot be is replaced by 0 or 1. The search of a run is dropped if its loads
    are impossible, so that the run belongs to no search.
    """
    metrics = {
        name: value
        for name, value in run.metrics.items()
        if abs(value) <= _LARGEST_VALUE and len(name) <= _LONGEST_NAME
    }
    duration_s = run.duration_s if 0 <= run.duration_s <= _LARGEST_VALUE else 0.0
    scale = run.time_scale if 1 / _LARGEST_VALUE <= run.time_scale <= _LARGEST_VALUE else 1.0
    searched = run.searched
    sound = searched.of in (RATE, CONCURRENCY) and all(
        0 <= load < math.inf
        for load in (searched.load, searched.highest_met, searched.lowest_not_met)
    )
    return replace(
        run,
        metrics=metrics,
        duration_s=duration_s,
        time_scale=scale,
        searched=searched if sound else Searched(),
    )


def _truncate_value(name: str, value: Any, depth: int) -> Any:
    """Return any part of an event's body, with texts, lists and maps cut to a size that every
    database can store.
    """
    if isinstance(value, str):
        return _truncate_text(value, _LONGEST_NAME if name in _NAMES else _LONGEST_TEXT)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value,
            **{
                item.name: _truncate_value(item.name, getattr(value, item.name), depth + 1)
                for item in fields(value)
            },
        )
    if isinstance(value, Mapping):
        pairs = list(value.items())[:_MOST_ENTRIES]
        return (
            {
                _truncate_text(str(key), _LONGEST_TEXT): _truncate_value("", entry, depth + 1)
                for key, entry in pairs
            }
            if depth < 20
            else {}
        )
    if isinstance(value, list | tuple):
        return (
            type(value)(_truncate_value(name, entry, depth + 1) for entry in value[:_MOST_ENTRIES])
            if depth < 20
            else type(value)()
        )
    return value


def _truncate_text(text: str, longest: int) -> str:
    # PostgreSQL cannot store a NUL.
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}") if "\0" in text else text
    return text if len(text) <= longest else f"{text[: longest - 40]}… ({len(text)} characters)"
