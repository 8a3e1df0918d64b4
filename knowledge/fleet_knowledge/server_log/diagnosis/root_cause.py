"""Owns the search for the root of a failure among all lines that sound like one. Reads messages;
knows the classes by name only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fleet_knowledge.server_log.diagnosis.launch_phases import (
    CAPTURE_GRAPH,
    INIT_DIST,
    LOAD_WEIGHT,
    READY,
    SERVING,
    START,
)
from fleet_knowledge.server_log.parsing.log_lines import LogLine
from fleet_knowledge.server_log.parsing.redaction import redact
from fleet_knowledge.server_log.symptoms.symptom import ECHO, LAST, ROOT, Symptom, symptom
from fleet_knowledge.server_log.symptoms.symptom_matching import is_exception, match_symptom

_MAX_SIGHTINGS = 256
_CRASH = re.compile(
    r"hit an exception|Exception in (?:thread|callback)|^Traceback \(most recent call last\)"
)
_BARE_ASSERTION = "AssertionError"
# The last frame of a traceback tells who refused; only the launcher's own check of its arguments
# has these files
_FRAME = re.compile(r'^\s+File "[^"]*"')
_ARGUMENTS_FRAME = re.compile(r'^\s+File "[^"]*(?:/server_args\.py|/arg_groups/\w+\.py)"')
_REFUSED = symptom(
    "argument_error",
    r"^(?:ValueError|AssertionError|NotImplementedError)\b",
    "server_args.py, arg_groups/",
    ROOT,
)
# PyTorch warns of why it sees no GPU, and goes on; the server then finds none
_CUDA_WARNS = "CUDA initialization: "
# Out of memory is one wording; what it means is told by where it happens
_OOM_BY_PHASE = {
    START: "oom_weights",
    INIT_DIST: "oom_weights",
    LOAD_WEIGHT: "oom_weights",
    CAPTURE_GRAPH: "oom_cuda_graph",
}
_NARROWER = {
    "cuda_oom": ("oom_cuda_graph", "oom_kv_cache"),
    "oom_weights": ("oom_kv_cache",),
    "nccl_timeout": ("weight_load_incomplete",),
}
# What ends only a launch: the same words in the log of a ready server are about a request
_LAUNCH_ONLY_CLASSES = (
    "argument_error",
    "spec_",
    "parallel_size",
    "hf_",
    "model_",
    "weight",
    "port_",
    "dist_",
    "dependency",
)
_OUTLIVED_BATCHES = 32  # batch lines after a failure show that it ended nothing


@dataclass(frozen=True, slots=True)
class Sighting:
    """One line that tells of a failure, ready to be shown."""

    failure_class: str
    distance: int
    order: int
    cause_line: str
    rank: str = ""
    phase: str = ""
    stamp: str = ""
    cure: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    batches: int = 0  # batch lines before it


@dataclass(slots=True)
class RootCauseFinder:
    """All sightings of one launch, the first of each class and rank."""

    sightings: list[Sighting] = field(default_factory=list)
    _seen: set[tuple[str, str, tuple[str, ...]]] = field(default_factory=set)
    _order: int = 0
    _crash_exception: str | None = (
        None  # the first exception after a crash was announced; empty until it comes
    )
    _last_exception: str = ""  # the last exception of the launch
    _exception_order: int = 0
    _progress_order: int = 0
    _stamp: str = ""
    _rank: str = ""  # of the scheduler whose traceback follows
    _asserted_source: str = ""  # the source line of an assertion, for an error that says no more
    _checks_arguments: bool = (
        False  # the last frame of the traceback is in the check of the arguments
    )
    _no_gpu_reason: Sighting | None = (
        None  # explains why no GPU is seen, and ends nothing by itself
    )

    def add_line(self, line: LogLine, phase: str, batches: int) -> bool:
        """True when the message tells of a failure or belongs to a traceback. `batches`: batch
        lines of the log so far.
        """
        self._order += 1
        line = self._with_assertion(line)
        if _CUDA_WARNS in line.text:
            self._record_no_gpu_reason(line, phase, batches)
        framed = self._is_argument_check_frame(line.text)
        found = match_symptom(line.text) or self._match_refused_argument(line.text)
        crash = ("xception" in line.text or "Traceback" in line.text) and bool(
            _CRASH.search(line.text)
        )
        if line.stamp:
            self._stamp, self._rank = line.stamp, str(line.rank or "") if crash else ""
        if crash and self._crash_exception is None:
            self._crash_exception = ""
        if found:
            self._record_sighting(line, phase, batches, *found)
        if not is_exception(line.text):
            return crash or framed or found is not None
        self._last_exception, self._exception_order = redact(line.text), self._order
        if self._crash_exception == "":
            self._crash_exception = self._last_exception
        return True

    def note_progress(self) -> None:
        """The launch came on: an exception before this did not end it."""
        self._progress_order = self._order
        self._crash_exception = None if not self.sightings else self._crash_exception

    def drop_survived(self) -> Sequence[Sighting]:
        """The server got ready all the same: what was seen so far ended nothing. They are forgotten
        and given back.
        """
        gone = self.sightings
        self.sightings, self._seen, self._crash_exception, self._last_exception = (
            [],
            set(),
            None,
            "",
        )
        return gone

    def drop_outlived(self, batches: int) -> Sequence[Sighting]:
        """Those after which the server went on with its work; they are forgotten."""
        gone = [
            sighting
            for sighting in self.sightings
            if batches - sighting.batches >= _OUTLIVED_BATCHES
        ]
        self.sightings = [sighting for sighting in self.sightings if sighting not in gone]
        return gone

    def root_cause(self, serving: bool) -> Sighting | None:
        """The line that explains the others; None when nothing failed."""
        if not self.sightings:
            return None if serving else self._launcher_exception()
        first = min(self.sightings, key=lambda sighting: (sighting.distance, sighting.order))
        first = self._most_specific(first)
        if self._no_gpu_reason and first.failure_class in ("no_gpu", "launch_crashed"):
            return replace(
                first,
                failure_class=self._no_gpu_reason.failure_class,
                cause_line=self._no_gpu_reason.cause_line,
                distance=self._no_gpu_reason.distance,
            )
        raised = self._crash_exception or self._last_exception
        if (
            raised
            and first.failure_class
            in ("scheduler_crashed", "detokenizer_crashed", "launch_crashed")
            and first.distance >= ECHO
        ):
            raised_symptom = match_symptom(
                raised
            )  # an echo that was raised is nearer than the crash that it is part of
            echoes = (
                raised_symptom is not None and raised_symptom[0].failure_class == "nccl_peer_lost"
            )
            first = replace(
                first,
                cause_line=raised,
                failure_class="nccl_peer_lost" if echoes else first.failure_class,
            )
        return first

    def sightings_of_class(self, failure_class: str) -> list[Sighting]:
        """Its sightings in order."""
        return [sighting for sighting in self.sightings if sighting.failure_class == failure_class]

    def _with_assertion(self, line: LogLine) -> LogLine:
        """A bare `AssertionError` with the source line that the traceback quoted before it."""
        if line.text[:1].isspace():
            quoted = line.text.strip()
            self._asserted_source = (
                quoted if quoted.startswith("assert ") else self._asserted_source
            )
        elif line.text == _BARE_ASSERTION and self._asserted_source:
            return replace(line, text=f"{_BARE_ASSERTION}: {self._asserted_source}")
        elif line.text.startswith("Traceback"):
            self._asserted_source = ""
        return line

    def _is_argument_check_frame(self, text: str) -> bool:
        """True for a frame in the check of arguments, and for the one that it called."""
        if not text[:1].isspace() or not _FRAME.match(text):
            return False
        before, self._checks_arguments = self._checks_arguments, bool(_ARGUMENTS_FRAME.match(text))
        return before or self._checks_arguments

    def _match_refused_argument(self, text: str) -> tuple[Symptom, Mapping[str, str]] | None:
        if not (self._checks_arguments and is_exception(text)):
            return None
        self._checks_arguments = False
        return (_REFUSED, {}) if _REFUSED.pattern.match(text) else None

    def _record_no_gpu_reason(self, line: LogLine, phase: str, batches: int) -> None:
        text = line.text[line.text.index(_CUDA_WARNS) :]
        if found := match_symptom(text):
            stamp = line.stamp or self._stamp
            self._no_gpu_reason = Sighting(
                found[0].failure_class,
                found[0].distance,
                self._order,
                redact(text),
                "",
                phase,
                stamp,
                "",
                {},
                batches,
            )

    def _record_sighting(
        self, line: LogLine, phase: str, batches: int, symptom: Symptom, details: Mapping[str, str]
    ) -> None:
        failure_class = symptom.failure_class
        if phase in (READY, SERVING) and failure_class.startswith(_LAUNCH_ONLY_CLASSES):
            return
        if failure_class == "cuda_oom":
            failure_class = _OOM_BY_PHASE.get(phase, failure_class)
        rank, stamp = str(line.rank or "") or self._rank, line.stamp or self._stamp
        rank = rank or (f"TP{details['rank']}" if "rank" in details else "")
        key = (failure_class, rank, (str(symptom.distance), *sorted(details.values())))
        if key in self._seen or len(self._seen) >= _MAX_SIGHTINGS:
            return
        self._seen.add(key)
        self.sightings.append(
            Sighting(
                failure_class,
                symptom.distance,
                self._order,
                redact(line.text),
                rank,
                phase,
                stamp,
                symptom.cure,
                details,
                batches,
            )
        )

    def _most_specific(self, first: Sighting) -> Sighting:
        """A later line may say more exactly what ran out."""
        for name in _NARROWER.get(first.failure_class, ()):
            for sighting in self.sightings_of_class(name):
                own = (
                    name == "weight_load_incomplete"
                )  # the timeout is how the waiting rank noticed
                return (
                    sighting
                    if own
                    else replace(first, failure_class=name, rank=first.rank or sighting.rank)
                )
        return first

    def _launcher_exception(self) -> Sighting | None:
        if not self._last_exception or self._exception_order <= self._progress_order:
            return None
        return Sighting(
            "launch_crashed",
            LAST,
            self._exception_order,
            self._crash_exception or self._last_exception,
        )
