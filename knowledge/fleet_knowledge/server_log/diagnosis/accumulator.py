"""Accumulates what the messages of a log say: launch, failures, warnings, facts and rates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet_knowledge.nccl.log.nccl_facts import NcclFacts
from fleet_knowledge.nccl.log.nccl_reader import NcclReader
from fleet_knowledge.server_log.diagnosis import launch_phases
from fleet_knowledge.server_log.diagnosis.decode_rates import LoggedRates
from fleet_knowledge.server_log.diagnosis.launch_phases import SERVING, LoggedLaunch
from fleet_knowledge.server_log.diagnosis.log_diagnosis import LogWarning
from fleet_knowledge.server_log.diagnosis.root_cause import RootCauseFinder, Sighting
from fleet_knowledge.server_log.parsing import server_facts
from fleet_knowledge.server_log.parsing.batch_columns import BatchColumns
from fleet_knowledge.server_log.parsing.batch_lines import BatchLine, read_batch
from fleet_knowledge.server_log.parsing.log_lines import (
    LogLine,
    clock_seconds,
    elapsed_s,
    read_log_lines,
)
from fleet_knowledge.server_log.parsing.redaction import redact
from fleet_knowledge.server_log.parsing.server_facts import (
    read_logged_arguments,
    read_server_facts,
    read_versions,
)
from fleet_knowledge.server_log.symptoms import symptom_matching, warning_patterns
from fleet_knowledge.server_log.symptoms.symptom_matching import match_symptom
from fleet_knowledge.server_log.symptoms.warning_patterns import WarningPattern, match_warning

_SAMPLES = 8
_TABLES = (
    symptom_matching.SYMPTOM_KEYWORDS,
    warning_patterns.WARNING_KEYWORDS,
    launch_phases.LAUNCH_KEYWORDS,
    server_facts.FACT_KEYWORDS,
)
_KEYWORDS = {word.lower() for several in _TABLES for word in several}
_KEYWORDS |= {
    "exiting",
    "shutting",
    "sigterm",
    "shutdown",
    "finished",
    "kill_process",
    "health",
    "traceback",
    "ccl",
    "--model",
    " batch",
}
_KEYWORDS |= {
    "hip version",
    "rocm version",
    "hostname",
    "librccl",
    "interrupt",
    "exit",
    "unavailable",
    "cancelled",
    'file "',
}
# A keyword that contains another one is redundant
_KEYWORD_BYTES = tuple(
    word.encode()
    for word in sorted(_KEYWORDS)
    if not any(other in word and other != word for other in _KEYWORDS)
)
_MAX_WARNINGS = 128
_MAX_EARLIER = 16
_READY = "The server is fired up"
_START = "server_args="
_STOPPED = re.compile(
    r"^(?:INFO: +)?(?:Gracefully exiting|Shutting down|SIGTERM received|Application shutdown "
    r"complete|Finished server process)"
    r"|kill_process_tree called|^slurmstepd: error: .*CANCELLED AT|exited with code (?:130|143)\b"
)
_STOP_KEYWORDS = (
    "exiting",
    "Shutting",
    "SIGTERM",
    "shutdown",
    "Finished",
    "kill_process",
    "CANCELLED",
    "exited",
)
# Messages during a shutdown that do not report a failure
_SHUTDOWN_NOISE = re.compile(
    r"\[c10d\] |TCPStore|destroy_process_group|resource_tracker|leaked |^Killed\b|exited with "
    r"code 137\b|status=9/KILL"
)
_HEALTH_FAILED = "Health check failed"
_HEARTBEAT = re.compile(r"last_heartbeat time: (\d\d:\d\d:\d\d)")
_LAUNCH_PROGRESS = re.compile(
    rb"server_args=|Init (?:torch|parallel)|Load weight|Memory pool|KV Cache|[Cc]aptur|Engine "
    rb"startup|fired up|Uvicorn|Health check"
    rb"|startup complete"
)


@dataclass(slots=True)
class LogAccumulator:
    """Holds what the messages of one log said so far.

    A log may hold several launches. When a launch begins after an earlier launch was ready or
    ended, launch, failures, rates and server facts are reset. Warnings, versions and the failures
    of earlier launches stay.
    """

    launch: LoggedLaunch = field(default_factory=LoggedLaunch)
    root_cause_finder: RootCauseFinder = field(default_factory=RootCauseFinder)
    rates: LoggedRates = field(default_factory=LoggedRates)
    server: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    launches: int = 0
    batches: int = 0  # batch lines so far
    excluded: int = 0
    architectures: list[tuple[str, str]] = field(
        default_factory=list
    )  # (rank, type) of each `Load weight end`
    command: str = ""
    stopped: bool = False
    unhealthy: bool = False
    silent_s: float = 0.0  # seconds without a token at the last failed health check
    silent_batches: int = 0  # batch lines before that check
    earlier_failures: list[dict[str, Any]] = field(default_factory=list)
    _warnings: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    _first_samples: list[tuple[int, BatchLine]] = field(default_factory=list)
    _last_sample: tuple[int, bytes] = (-1, b"")
    _nccl: NcclReader = field(default_factory=NcclReader)
    _source: str = ""

    def needs_flush_before(self, line: LogLine) -> bool:
        """Return whether buffered batch lines must be added before this message, because the
        message may reset the rates.
        """
        return _READY in line.text or line.text.startswith(_START)

    @staticmethod
    def is_launch_progress(raw: bytes) -> bool:
        """Return whether a line reports progress of a launch. All such lines must be read, even if
        many have the same shape.
        """
        return bool(_LAUNCH_PROGRESS.search(raw))

    @staticmethod
    def may_be_relevant(raw: bytes) -> bool:
        """Return whether a line contains one of the keywords that every relevant line has.

        This check is fast. It is meant for logs in which all lines differ.
        """
        return any(map(raw.lower().__contains__, _KEYWORD_BYTES))

    @staticmethod
    def is_warning_or_failure(raw: bytes) -> bool:
        """Return whether an NCCL line is also a warning or a failure."""
        text = raw.decode("utf-8", "replace")
        return match_warning(text) is not None or match_symptom(text) is not None

    def add_message(self, line: LogLine) -> bool:
        """Add one message that is not a batch line. Return whether it was relevant."""
        text = line.text
        if not text:
            return False
        is_relevant = self._update_launch(line)
        if self.stopped and _SHUTDOWN_NOISE.search(text):
            return is_relevant
        if self.root_cause_finder.add_line(line, self.launch.phase_of(line.rank), self.batches):
            self.stopped, is_relevant = False, True
        if found := match_warning(text):
            is_relevant = self._add_pattern_warning(line, *found)
        if text.startswith(_HEALTH_FAILED):
            self.unhealthy = is_relevant = True
            self.silent_s, self.silent_batches = _silence_s(line), self.batches
        if any(map(text.__contains__, _STOP_KEYWORDS)) and _STOPPED.search(text):
            self.stopped = is_relevant = True
        if versions := read_versions(text):
            self.versions = {**versions, **self.versions}
            is_relevant = True
        return is_relevant

    def add_answered_request(self, healthy: bool | None, failed: bool) -> None:
        """Record an answered request.

        `healthy` is the result of a health check, or None if the request was not a health check.
        `failed` says whether the server answered with an error; it is used only if `healthy` is
        None.
        """
        if healthy is not None:
            self.unhealthy = not healthy
        elif failed:
            self._add_warning(
                "http_5xx",
                "",
                "warning",
                "requests were answered with a server error",
                "Read the log around these requests.",
                {},
            )

    def add_batches(self, pieces: Sequence[BatchColumns]) -> None:
        """Add the batch lines that were read since the last call."""
        if not pieces:
            return
        self.rates.add(pieces)
        if not self.launch.phase or (self.launch.ready_at and self.rates.real_work):
            self.launch.mark_serving()

    def keep_sample(self, batch: BatchLine, place: int) -> None:
        """Keep a batch line as a sample if it is among the first batch lines of the log."""
        if len(self._first_samples) < _SAMPLES:
            self._first_samples.append((place, batch))

    def keep_raw_samples(self, raws: Sequence[bytes], places: Sequence[int]) -> None:
        """Keep raw batch lines as samples: the first batch lines of the log and the last one."""
        self._last_sample = max(self._last_sample, (places[-1], raws[-1]))
        if len(self._first_samples) == _SAMPLES and places[0] > self._first_samples[-1][0]:
            return
        for raw, place in zip(raws[:_SAMPLES], places[:_SAMPLES], strict=True):
            for line in read_log_lines(raw):
                if batch := read_batch(line):
                    self._first_samples.append((place, batch))
        self._first_samples = sorted(self._first_samples, key=lambda pair: pair[0])[:_SAMPLES]

    def add_nccl_line(self, line: LogLine, times: int) -> None:
        """Add a line of NCCL or RCCL that occurred `times` times."""
        self._nccl.feed(line.text, times)
        if versions := read_versions(line.text):
            self.versions = {**versions, **self.versions}

    def settle(self) -> None:
        """Complete what only the end of the log can show.

        Rates that waited for a next line are counted. Failures after which the server continued to
        work no longer count.
        """
        self.rates.finish()
        if self.launch.phase == SERVING:
            for sighting in self.root_cause_finder.drop_outlived(self.batches):
                self._warn_survived(sighting)

    def nccl_facts(self) -> NcclFacts:
        """Return the facts in the lines of NCCL or RCCL."""
        return self._nccl.facts()

    def warnings(self) -> list[LogWarning]:
        """Return the warnings so far, the first seen first."""
        return [
            LogWarning(code, message, hint, severity, reason, count, details)
            for (code, reason), (severity, message, hint, count, details) in self._warnings.items()
        ]

    def samples(self) -> list[Mapping[str, Any]]:
        """Return the first batch lines and the last batch line as JSON objects."""
        shown_lines = dict(self._first_samples)
        for line in read_log_lines(self._last_sample[1]):
            if batch := read_batch(line):
                shown_lines[self._last_sample[0]] = batch
        return [shown_lines[place].to_json() for place in sorted(shown_lines)]

    def _update_launch(self, line: LogLine) -> bool:
        text = line.text
        if text.startswith(_START):
            self._start_launch(line)
        elif (
            not self.command and "--model" in text and ("sglang" in text or "launch_server" in text)
        ):
            self.command = text
        ready_before = self.launch.ready_at
        moved = self.launch.update(line)
        if moved:
            self.root_cause_finder.note_progress()
            self.stopped = False
        if _READY in text:
            self._mark_ready(line, again=bool(ready_before))
        facts = read_server_facts(text)
        self.server.update(
            {name: value for name, value in facts.items() if name not in self.server}
        )
        if "architecture" in facts and len(self.architectures) < _MAX_WARNINGS:
            self.architectures.append((str(line.rank or ""), facts["architecture"]))
        return moved or bool(facts)

    def _start_launch(self, line: LogLine) -> None:
        over = (
            self.launch.ready_at or self.stopped or self.root_cause_finder.root_cause(serving=False)
        )
        if self.launches and over and line.source == self._source:
            self._reset_for_next_launch()
        self._source = line.source if not self.launches else self._source
        self.launches += 1
        self.server = {**read_logged_arguments(line.text), **self.server}

    def _reset_for_next_launch(self) -> None:
        """Reset launch, failures, rates and server facts. If the launch that ends here failed,
        record its failure.
        """
        if (root := self.root_cause_finder.root_cause(serving=bool(self.launch.ready_at))) and len(
            self.earlier_failures
        ) < _MAX_EARLIER:
            self.earlier_failures.append(
                {
                    "failure_class": root.failure_class,
                    "cause_line": root.cause_line,
                    "at": root.stamp or None,
                }
            )
        self.launch, self.root_cause_finder, self.rates = (
            LoggedLaunch(),
            RootCauseFinder(),
            LoggedRates(),
        )
        self.server, self.architectures, self.excluded = {}, [], 0
        self.stopped = self.unhealthy = False
        self._first_samples, self._last_sample = [], (-1, b"")

    def _mark_ready(self, line: LogLine, again: bool) -> None:
        """Mark the server as ready.

        Earlier batch lines of this server are dropped, because they come from its own warm-up. A
        failure that the server survived becomes a warning.
        """
        if not again:
            self.excluded += self.rates.drop_source(line.source)
            self._first_samples, self._last_sample = [], (-1, b"")
        for sighting in self.root_cause_finder.drop_survived() if not again else ():
            self._warn_survived(sighting)
        self.stopped = self.unhealthy = False

    def _warn_survived(self, sighting: Sighting) -> None:
        if sighting.distance == 0:
            message = (
                f"the log shows {sighting.failure_class}, but the server continued: "
                f"{sighting.cause_line}"
            )
            self._add_warning(
                sighting.failure_class,
                "",
                "warning",
                message,
                "Check whether this failure made the server slower.",
                {},
            )

    def _add_pattern_warning(
        self, line: LogLine, note: WarningPattern, details: Mapping[str, str]
    ) -> bool:
        if note.serving_only and self.launch.begun and not self.launch.ready_at:
            return False  # part of the launch
        rank = {"rank": str(line.rank)} if line.rank else {}
        shown_details = {
            name.removesuffix("_too"): redact(value) for name, value in details.items()
        }
        self._add_warning(
            note.code,
            note.reason,
            note.severity,
            note.message,
            note.hint,
            {**shown_details, **rank},
        )
        return True

    def _add_warning(
        self,
        code: str,
        reason: str,
        severity: str,
        message: str,
        hint: str,
        details: Mapping[str, Any],
    ) -> None:
        known = self._warnings.get((code, reason))
        if known:
            known[3] += 1
        elif len(self._warnings) < _MAX_WARNINGS:
            self._warnings[code, reason] = [severity, message, hint, 1, dict(details)]


def _silence_s(line: LogLine) -> float:
    """Return the seconds between the last token and a failed health check. Return 0 if the line
    does not report them.
    """
    beat = _HEARTBEAT.search(line.text)
    clock_s = clock_seconds("", line.stamp.rpartition(" ")[2])
    return (elapsed_s(clock_seconds("", beat[1]), clock_s) or 0.0) if beat else 0.0
