"""Owns what the messages of a log add up to: launch, failure, warnings, facts, figures. Takes messages in order; reads no bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet_knowledge.nccl.log.nccl_reader import NcclReader
from fleet_knowledge.server_log.diagnosis import conclusion, launch_phases
from fleet_knowledge.server_log.diagnosis.decode_rates import Rates
from fleet_knowledge.server_log.diagnosis.decode_section import decode_section, figures_warn
from fleet_knowledge.server_log.diagnosis.launch_phases import SERVING, Launch
from fleet_knowledge.server_log.diagnosis.log_diagnosis import Diagnosis, Warned
from fleet_knowledge.server_log.diagnosis.root_cause import Roots, Sighting
from fleet_knowledge.server_log.parsing import server_facts
from fleet_knowledge.server_log.parsing.batch_columns import Rows
from fleet_knowledge.server_log.parsing.batch_lines import Batch, read_batch
from fleet_knowledge.server_log.parsing.log_lines import Line, elapsed, read_lines, seconds
from fleet_knowledge.server_log.parsing.redaction import shown
from fleet_knowledge.server_log.parsing.server_facts import arguments_of, facts_of, versions_of
from fleet_knowledge.server_log.symptoms import symptom_matching, warning_patterns
from fleet_knowledge.server_log.symptoms.symptom_matching import symptom_of
from fleet_knowledge.server_log.symptoms.warning_patterns import Note, note_of

_SAMPLES = 8
_TABLES = (symptom_matching.TELLTALES, warning_patterns.TELLTALES, launch_phases.TELLTALES, server_facts.TELLTALES)
_TELLTALES = {word.lower() for several in _TABLES for word in several}
_TELLTALES |= {"exiting", "shutting", "sigterm", "shutdown", "finished", "kill_process", "health", "traceback", "ccl", "--model", " batch"}
_TELLTALES |= {"hip version", "rocm version", "hostname", "librccl", "interrupt", "exit", "unavailable", "cancelled", 'file "'}
# A word that holds another one adds nothing
_WORDS = tuple(word.encode() for word in sorted(_TELLTALES) if not any(other in word and other != word for other in _TELLTALES))
_MAX_WARNINGS = 128
_MAX_EARLIER = 16
_READY = "The server is fired up"
_START = "server_args="
_STOPPED = re.compile(
    r"^(?:INFO: +)?(?:Gracefully exiting|Shutting down|SIGTERM received|Application shutdown complete|Finished server process)"
    r"|kill_process_tree called|^slurmstepd: error: .*CANCELLED AT|exited with code (?:130|143)\b"
)
_STOPS = ("exiting", "Shutting", "SIGTERM", "shutdown", "Finished", "kill_process", "CANCELLED", "exited")
# What is said of a server that is being ended, by its ranks of each other and by what ended it
_PARTING = re.compile(r"\[c10d\] |TCPStore|destroy_process_group|resource_tracker|leaked |^Killed\b|exited with code 137\b|status=9/KILL")
_HEALTH_FAILED = "Health check failed"
_HEARTBEAT = re.compile(r"last_heartbeat time: (\d\d:\d\d:\d\d)")
_MOVES = re.compile(
    rb"server_args=|Init (?:torch|parallel)|Load weight|Memory pool|KV Cache|[Cc]aptur|Engine startup|fired up|Uvicorn|Health check"
    rb"|startup complete"
)


@dataclass(slots=True)
class Story:
    """One log, or the last launch in it: a new launch after an end forgets the one before, but for its failure."""

    launch: Launch = field(default_factory=Launch)
    roots: Roots = field(default_factory=Roots)
    rates: Rates = field(default_factory=Rates)
    server: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    launches: int = 0
    batches: int = 0  # batch lines so far
    excluded: int = 0
    architectures: list[tuple[str, str]] = field(default_factory=list)  # (rank, type) of each `Load weight end`
    command: str = ""
    stopped: bool = False
    unhealthy: bool = False
    silent_s: float = 0.0  # how long no token had come at the last health check that failed
    silent_batches: int = 0  # batch lines before that check
    earlier: list[dict[str, Any]] = field(default_factory=list)
    _warned: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    _first: list[tuple[int, Batch]] = field(default_factory=list)
    _last: tuple[int, bytes] = (-1, b"")
    _nccl: NcclReader = field(default_factory=NcclReader)
    _source: str = ""

    def turns(self, line: Line) -> bool:
        """Whether batch lines before this message must be added up before it is taken."""
        return _READY in line.text or line.text.startswith(_START)

    @staticmethod
    def moves(raw: bytes) -> bool:
        """Whether lines like this one tell how far a launch has come: each of them counts."""
        return bool(_MOVES.search(raw))

    @staticmethod
    def may_tell(raw: bytes) -> bool:
        """Whether a line holds any word that a message worth reading holds: a quick look, for logs in which no two lines are alike."""
        return any(map(raw.lower().__contains__, _WORDS))

    @staticmethod
    def heeds(raw: bytes) -> bool:
        """Whether a line of NCCL's is a warning or a failure too."""
        text = raw.decode("utf-8", "replace")
        return note_of(text) is not None or symptom_of(text) is not None

    def take(self, line: Line) -> bool:
        """One message that is no batch line; True when it told anything."""
        text = line.text
        if not text:
            return False
        told = self._take_launch(line)
        if self.stopped and _PARTING.search(text):
            return told
        if self.roots.take(line, self.launch.phase_of(line.rank), self.batches):
            self.stopped, told = False, True
        if found := note_of(text):
            told = self._note(line, *found)
        if text.startswith(_HEALTH_FAILED):
            self.unhealthy = told = True
            self.silent_s, self.silent_batches = _silence_s(line), self.batches
        if any(map(text.__contains__, _STOPS)) and _STOPPED.search(text):
            self.stopped = told = True
        if versions := versions_of(text):
            self.versions = {**versions, **self.versions}
            told = True
        return told

    def answered(self, healthy: bool | None, failed: bool) -> None:
        """A request was answered: of a health check whether it was healthy, of others whether the server failed it."""
        if healthy is not None:
            self.unhealthy = not healthy
        elif failed:
            self._warn("http_5xx", "", "warning", "requests were answered with a server error", "Look at the log around them.", {})

    def add(self, pieces: Sequence[Rows]) -> None:
        """Batch lines that were read since the last call."""
        if not pieces:
            return
        self.rates.add(pieces)
        if not self.launch.phase or (self.launch.ready_at and self.rates.real_work):
            self.launch.serve()

    def sample(self, batch: Batch, place: int) -> None:
        """The first lines are shown as they were read."""
        if len(self._first) < _SAMPLES:
            self._first.append((place, batch))

    def sample_raw(self, raws: Sequence[bytes], places: Sequence[int]) -> None:
        """The same for lines of one shape."""
        self._last = max(self._last, (places[-1], raws[-1]))
        if len(self._first) == _SAMPLES and places[0] > self._first[-1][0]:
            return
        for raw, place in zip(raws[:_SAMPLES], places[:_SAMPLES], strict=True):
            for line in read_lines(raw):
                if batch := read_batch(line):
                    self._first.append((place, batch))
        self._first = sorted(self._first, key=lambda pair: pair[0])[:_SAMPLES]

    def nccl_line(self, line: Line, times: int) -> None:
        """A line of NCCL's or RCCL's, and how often it came."""
        self._nccl.feed(line.text, times)
        if versions := versions_of(line.text):
            self.versions = {**versions, **self.versions}

    def told(self) -> Diagnosis:
        """The diagnosis of all that was taken."""
        self.rates.finish()
        for sighting in self.roots.outlived(self.batches) if self.launch.phase == SERVING else ():
            self._survived(sighting)
        decode = decode_section(self.rates, self._samples(), self.excluded)
        warned = [
            Warned(code, message, hint, severity, reason, count, details)
            for (code, reason), (severity, message, hint, count, details) in self._warned.items()
        ]
        warned += figures_warn(decode, bool(self.server.get("speculative_algorithm")))
        nccl = self._nccl.facts()
        warned += [Warned(note.code, note.message, note.hint) for note in nccl.notes]
        return conclusion.diagnosis(self, warned, decode, nccl)

    def _take_launch(self, line: Line) -> bool:
        text = line.text
        if text.startswith(_START):
            self._start(line)
        elif not self.command and "--model" in text and ("sglang" in text or "launch_server" in text):
            self.command = text
        ready_before = self.launch.ready_at
        moved = self.launch.take(line)
        if moved:
            self.roots.moved()
            self.stopped = False
        if _READY in text:
            self._get_ready(line, again=bool(ready_before))
        facts = facts_of(text)
        self.server.update({name: value for name, value in facts.items() if name not in self.server})
        if "architecture" in facts and len(self.architectures) < _MAX_WARNINGS:
            self.architectures.append((str(line.rank or ""), facts["architecture"]))
        return moved or bool(facts)

    def _start(self, line: Line) -> None:
        over = self.launch.ready_at or self.stopped or self.roots.root(serving=False)
        if self.launches and over and line.source == self._source:
            self._forget()
        self._source = line.source if not self.launches else self._source
        self.launches += 1
        self.server = {**arguments_of(line.text), **self.server}

    def _forget(self) -> None:
        """What follows is another launch in the same log."""
        if (root := self.roots.root(serving=bool(self.launch.ready_at))) and len(self.earlier) < _MAX_EARLIER:
            self.earlier.append({"failure_class": root.failure_class, "cause_line": root.cause_line, "at": root.stamp or None})
        self.launch, self.roots, self.rates = Launch(), Roots(), Rates()
        self.server, self.architectures, self.excluded = {}, [], 0
        self.stopped = self.unhealthy = False
        self._first, self._last = [], (-1, b"")

    def _get_ready(self, line: Line, again: bool) -> None:
        """All before was the server's own warm-up; a failure that it survived is a warning."""
        if not again:
            self.excluded += self.rates.forget(line.source)
            self._first, self._last = [], (-1, b"")
        for sighting in self.roots.recover() if not again else ():
            self._survived(sighting)
        self.stopped = self.unhealthy = False

    def _survived(self, sighting: Sighting) -> None:
        if sighting.distance == 0:
            message = f"the log tells of {sighting.failure_class}, but the server went on: {sighting.cause_line}"
            self._warn(sighting.failure_class, "", "warning", message, "Look whether it made the server slower.", {})

    def _note(self, line: Line, note: Note, details: Mapping[str, str]) -> bool:
        if note.serving_only and self.launch.begun and not self.launch.ready_at:
            return False  # part of the launch
        rank = {"rank": str(line.rank)} if line.rank else {}
        shown_details = {name.removesuffix("_too"): shown(value) for name, value in details.items()}
        self._warn(note.code, note.reason, note.severity, note.message, note.hint, {**shown_details, **rank})
        return True

    def _warn(self, code: str, reason: str, severity: str, message: str, hint: str, details: Mapping[str, Any]) -> None:
        known = self._warned.get((code, reason))
        if known:
            known[3] += 1
        elif len(self._warned) < _MAX_WARNINGS:
            self._warned[code, reason] = [severity, message, hint, 1, dict(details)]

    def _samples(self) -> list[Mapping[str, Any]]:
        shown_lines = {place: batch for place, batch in self._first}
        for line in read_lines(self._last[1]):
            if batch := read_batch(line):
                shown_lines[self._last[0]] = batch
        return [batch.to_json() for _, batch in sorted(shown_lines.items(), key=lambda pair: pair[0])]


def _silence_s(line: Line) -> float:
    """Seconds from the last token to a health check that failed, as its line tells; 0 when it does not."""
    beat = _HEARTBEAT.search(line.text)
    clock_s = seconds("", line.stamp.rpartition(" ")[2])
    return (elapsed(seconds("", beat[1]), clock_s) or 0.0) if beat else 0.0
