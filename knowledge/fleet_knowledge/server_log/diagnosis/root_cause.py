"""Finds the root cause of a failure among all lines that report one."""

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
# The last frame of a traceback shows which code raised; only the launcher's argument check is in
# these files
_FRAME = re.compile(r'^\s+File "[^"]*"')
_ARGUMENTS_FRAME = re.compile(r'^\s+File "[^"]*(?:/server_args\.py|/arg_groups/\w+\.py)"')
_REFUSED = symptom(
    "argument_error",
    r"^(?:ValueError|AssertionError|NotImplementedError)\b",
    "server_args.py, arg_groups/",
    ROOT,
)
# PyTorch only warns why it sees no GPU; the server fails later
_CUDA_WARNS = "CUDA initialization: "
# All phases write the same out-of-memory message; the phase decides what it means
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
# Classes that can end only a launch: after it the same words are about a request
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
_OUTLIVED_BATCHES = 32  # so many batch lines after a failure show that the server continued


@dataclass(frozen=True, slots=True)
class Sighting:
    """Records one line that reports a failure. `cause_line` is that line, redacted."""

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
    """Collects the sightings of one launch. Of sightings with equal failure class, rank and
    details, only the first is kept.
    """

    sightings: list[Sighting] = field(default_factory=list)
    _seen: set[tuple[str, str, tuple[str, ...]]] = field(default_factory=set)
    _order: int = 0
    # the first exception after a crash was announced; empty until it appears
    _crash_exception: str | None = None
    _last_exception: str = ""  # the last exception of the launch
    _exception_order: int = 0
    _progress_order: int = 0
    _stamp: str = ""
    _rank: str = ""  # of the scheduler whose traceback follows
    _asserted_source: str = ""  # the source line of an assertion, for an error that says no more
    _checks_arguments: bool = False  # the last frame of the traceback is in the argument check
    _no_gpu_reason: Sighting | None = None  # a warning that explains why no GPU is seen

    def add_line(self, line: LogLine, phase: str, batches: int) -> bool:
        """Add a message. Return whether it reports a failure or belongs to a traceback.

        `batches` is the number of batch lines in the log so far.
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
        """Record that the launch made progress. An exception before this did not end the launch."""
        self._progress_order = self._order
        self._crash_exception = None if not self.sightings else self._crash_exception

    def drop_survived(self) -> Sequence[Sighting]:
        """Forget and return all sightings. The server became ready, so these failures did not end
        the launch.
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
        """Forget and return the sightings after which the server continued to work."""
        gone = [
            sighting
            for sighting in self.sightings
            if batches - sighting.batches >= _OUTLIVED_BATCHES
        ]
        self.sightings = [sighting for sighting in self.sightings if sighting not in gone]
        return gone

    def root_cause(self, serving: bool) -> Sighting | None:
        """Return the sighting nearest to the root cause, or None if nothing failed."""
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
            # the exception itself is nearer to the cause than the crash message
            raised_symptom = match_symptom(raised)
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
        """Return the sightings of a failure class, in log order."""
        return [sighting for sighting in self.sightings if sighting.failure_class == failure_class]

    def _with_assertion(self, line: LogLine) -> LogLine:
        """Return the line. To a bare `AssertionError`, add the source line that its traceback
        quoted.
        """
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
        """Return whether a line is a traceback frame in SGLang's argument check, or the frame after
        it.
        """
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
        """Return the sighting that says most exactly what failed. A later sighting may have a more
        exact failure class than `first`.
        """
        for name in _NARROWER.get(first.failure_class, ()):
            for sighting in self.sightings_of_class(name):
                own = name == "weight_load_incomplete"  # the waiting rank only noticed a timeout
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
