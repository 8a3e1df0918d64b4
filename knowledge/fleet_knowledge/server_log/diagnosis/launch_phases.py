"""Tracks the phases of a launch: their order, the lines that open and close them, and their time
limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet_knowledge.release import VersionRange
from fleet_knowledge.server_log.parsing.log_lines import LogLine, Rank, elapsed_s

START, INIT_DIST, LOAD_WEIGHT, KV_ALLOC = "start", "init_dist", "load_weight", "kv_alloc"
CAPTURE_GRAPH, WARM_UP, HTTP_BIND, READY, SERVING = (
    "capture_graph",
    "warm_up",
    "http_bind",
    "ready",
    "serving",
)
PHASES = (
    START,
    INIT_DIST,
    LOAD_WEIGHT,
    KV_ALLOC,
    CAPTURE_GRAPH,
    WARM_UP,
    HTTP_BIND,
    READY,
    SERVING,
)

STALL_LIMITS_S: Mapping[str, float] = {
    START: 300.0,  # imports of a cold file system; downloads count as progress
    INIT_DIST: 600.0,  # SGLang's own --dist-timeout
    LOAD_WEIGHT: 900.0,  # one shard from slow shared storage
    KV_ALLOC: 300.0,
    CAPTURE_GRAPH: 900.0,  # one batch size with autotuning
    WARM_UP: 1800.0,  # up to 0.4.5 DeepGEMM compiles thousands of kernels without a message
    HTTP_BIND: 600.0,  # the server's own first request
    READY: 0.0,  # 0: no limit
    SERVING: 0.0,
}
"""Seconds that a phase may last without progress; the defaults of `phase_timeouts_s`."""

_BEGIN, _END, _MARK = "begin", "end", "mark"


@dataclass(frozen=True, slots=True)
class _Marker:
    phase: str
    position: str
    pattern: re.Pattern[str]
    source: str
    versions: VersionRange = field(default_factory=VersionRange)


def _marker(
    phase: str, what: str, words: str, source: str, first: str = "", last: str = ""
) -> _Marker:
    return _Marker(phase, what, re.compile(words), source, VersionRange(first, last))


_MARKERS = (
    _marker(START, _BEGIN, r"^server_args=(?:ServerArgs\(|\{)", "http_server.py, engine.py"),
    _marker(INIT_DIST, _BEGIN, r"^Init torch distributed begin", "model_runner.py", "", "0.5.13"),
    _marker(INIT_DIST, _END, r"^Init torch distributed ends", "model_runner.py", "", "0.5.13"),
    _marker(INIT_DIST, _BEGIN, r"^Init parallel begin", "distributed/bootstrap.py", "0.5.13"),
    _marker(INIT_DIST, _END, r"^Init parallel ends", "distributed/bootstrap.py", "0.5.13"),
    _marker(LOAD_WEIGHT, _BEGIN, r"^Load weight begin", "model_runner.py"),
    _marker(LOAD_WEIGHT, _END, r"^Load weight end", "model_runner.py"),
    _marker(
        KV_ALLOC,
        _MARK,
        r"KV Cache is allocated|^Memory profiling|^Mamba Cache is allocated",
        "memory_pool.py",
    ),
    _marker(KV_ALLOC, _END, r"^Memory pool end", "model_runner.py"),
    _marker(
        CAPTURE_GRAPH,
        _BEGIN,
        r"^Capture (?:[\w-]+ )*?(?i:cuda|npu|cpu|xpu)? ?graphs? begin",
        "cuda_graph_runner.py",
    ),
    _marker(
        CAPTURE_GRAPH,
        _END,
        r"^Capture (?:[\w-]+ )*?(?i:cuda|npu|cpu|xpu)? ?graphs? end",
        "cuda_graph_runner.py",
    ),
    _marker(
        CAPTURE_GRAPH,
        _MARK,
        r"^Capturing (?:batches|num[_ ]tokens)",
        "tqdm bar of cuda_graph_runner.py",
    ),
    _marker(
        WARM_UP,
        _MARK,
        (
            r"Entering DeepGEMM JIT|DeepGEMM (?:JIT|warmup)|^Try DeepGEMM|flashinfer autotune|"
            r"^Running FlashInfer autotune"
        ),
        "deep_gemm",
    ),
    _marker(
        HTTP_BIND,
        _MARK,
        (
            r"^INFO: +Started server process|^INFO: +Application startup complete|^INFO: +Uvicorn "
            r"running"
        ),
        "uvicorn",
    ),
    _marker(
        READY, _MARK, r"The server is fired up and ready to roll!", "http_server.py, 0.2 - 0.5.23"
    ),
)
LAUNCH_KEYWORDS = (
    "server_args=",
    "Init torch",
    "Init parallel",
    "Load weight",
    "Cache is allocated",
    "Memory p",
    "Captur",
    "DeepGEMM",
    "lash",
    "Started server",
    "startup",
    "Uvicorn",
    "fired up",
    "% Completed",
    "%|",
)
"""Every line that reports progress of a launch contains one of these."""
_ELAPSED = re.compile(r"\b(?:elapsed=|Time elapsed: )([\d.]{1,12}) ?s")
# From 0.5.13: what the engine itself measured
_TIMINGS = re.compile(r"Engine startup timings \(s\): (.*)")
_TIMING = re.compile(r"(\w+)=(?:([\d.]{1,12})|\{([^}]*)\})")
_PHASE_OF_TIMING = {
    "load_weight": LOAD_WEIGHT,
    "kv_cache_allocation": KV_ALLOC,
    "cuda_graph": CAPTURE_GRAPH,
}
_DRAFT = re.compile(r"\bdraft\b", re.I)
_COUNT = re.compile(r"(\d{1,7})/(\d{1,7}) \[")
_BARS = (
    (
        LOAD_WEIGHT,
        re.compile(
            r"Loading \w+ checkpoint shards|Multi-thread loading shards|Loading (?:safetensors|pt) "
        ),
    ),
    (CAPTURE_GRAPH, re.compile(r"Capturing (?:batches|num[_ ]tokens)")),
    (WARM_UP, re.compile(r"DeepGEMM warmup")),
)
_MAX_RANKS = 4096
_NO_RANK = Rank()


@dataclass(slots=True)
class LoggedLaunch:
    """Tracks the progress of one launch from the messages of its log."""

    phase: str = ""
    progress: tuple[int, int] = (0, 0)
    ready_at: str = ""
    ready_at_s: float | None = None
    began_s: float | None = None
    begun: bool = False  # the log shows the launch itself, and does not begin later
    shards: tuple[int, int] = (0, 0)
    graphs: tuple[int, int] = (0, 0)
    loaded_ranks: set[Rank] = field(default_factory=set)  # ranks that finished loading weights
    ranks: set[Rank] = field(default_factory=set)
    _begun_at_s: dict[tuple[Rank, str], float] = field(default_factory=dict)
    _durations_s: dict[tuple[Rank, str], float] = field(default_factory=dict)
    _phase_by_rank: dict[Rank, str] = field(default_factory=dict)
    _measured_s: dict[str, float] = field(default_factory=dict)
    _bound_s: float | None = None

    def update(self, line: LogLine) -> bool:
        """Update the state from the next message. Return whether the message reported progress of
        the launch.
        """
        if line.rank and len(self.ranks) < _MAX_RANKS:
            self.ranks.add(line.rank)
        if "%|" in line.text or "% Completed" in line.text:
            return self._read_progress_bar(line.text)
        if line.text.startswith("Engine startup timings"):
            return self._read_startup_timings(line.text)
        if not any(map(line.text.__contains__, LAUNCH_KEYWORDS)):
            return False
        marker = next((marker for marker in _MARKERS if marker.pattern.search(line.text)), None)
        if marker:
            self._apply_marker(marker, line)
        return marker is not None

    def mark_serving(self) -> None:
        """Set the phase to serving, if the launch was ready or the log begins after the launch."""
        if self.phase in ("", READY):
            self.phase = SERVING

    def phase_of(self, rank: Rank | None) -> str:
        """Return the last phase that a rank reported. Return the phase of the launch if the rank
        reported none, or if the server is ready.
        """
        own = self._phase_by_rank.get(rank or _NO_RANK, "")
        return self.phase if not own or self.phase in (READY, SERVING) else own

    def phases_s(self) -> dict[str, float]:
        """Return the seconds that each ended phase took, in phase order. The slowest rank
        counts.
        """
        took: dict[str, float] = {}
        for (_, phase), seconds in self._durations_s.items():
            took[phase] = max(took.get(phase, 0.0), seconds)
        took |= self._measured_s
        return {phase: round(took[phase], 3) for phase in PHASES if phase in took}

    def _apply_marker(self, marker: _Marker, line: LogLine) -> None:
        rank = line.rank or _NO_RANK
        self.begun = self.begun or marker.phase != WARM_UP
        if marker.phase == START:
            self.began_s = line.at_s
        elif (
            self.began_s is not None
            and (START not in {phase for _, phase in self._durations_s})
            and marker.phase == INIT_DIST
        ):
            self._add_duration(_NO_RANK, START, elapsed_s(self.began_s, line.at_s))
        if marker.phase == READY:
            self._mark_ready(line)
        elif marker.phase == HTTP_BIND:
            self._bound_s = line.at_s if self._bound_s is None else self._bound_s
        elif marker.position == _BEGIN:
            self._begin(rank, marker.phase, line)
        elif marker.position == _END:
            self._end(rank, marker.phase, line)
        self._set_phase(
            rank,
            KV_ALLOC if (marker.phase, marker.position) == (LOAD_WEIGHT, _END) else marker.phase,
        )

    def _set_phase(self, rank: Rank, phase: str) -> None:
        if phase != self.phase:
            self.progress = (0, 0)
        self.phase = phase if self.phase not in (READY, SERVING) else self.phase
        if len(self._phase_by_rank) < _MAX_RANKS:
            self._phase_by_rank[rank] = phase

    def _mark_ready(self, line: LogLine) -> None:
        self.ready_at, self.ready_at_s = line.stamp, line.at_s
        self._add_duration(_NO_RANK, HTTP_BIND, elapsed_s(self._bound_s, line.at_s))

    def _begin(self, rank: Rank, phase: str, line: LogLine) -> None:
        if line.at_s is not None and len(self._begun_at_s) < _MAX_RANKS:
            self._begun_at_s[rank, phase] = line.at_s

    def _end(self, rank: Rank, phase: str, line: LogLine) -> None:
        if phase == CAPTURE_GRAPH and _DRAFT.search(line.text):
            self._begun_at_s.pop((rank, phase), None)
            return  # only the target's graphs count for the phase; the draft's follow
        found = _ELAPSED.search(line.text)
        took_s = elapsed_s(self._begun_at_s.pop((rank, phase), None), line.at_s)
        self._add_duration(rank, phase, _decimal(found[1]) if found else took_s)
        if phase == LOAD_WEIGHT:
            self.loaded_ranks.add(rank) if len(self.loaded_ranks) < _MAX_RANKS else None
            if line.at_s is not None:
                self._begun_at_s[rank, KV_ALLOC] = line.at_s

    def _add_duration(self, rank: Rank, phase: str, took_s: float | None) -> None:
        if took_s is not None and len(self._durations_s) < _MAX_RANKS * len(PHASES):
            self._durations_s[rank, phase] = self._durations_s.get((rank, phase), 0.0) + took_s

    def _read_progress_bar(self, text: str) -> bool:
        bar = next((phase for phase, words in _BARS if words.search(text)), "")
        counts = _COUNT.findall(text)
        if not counts or not bar:
            return False
        self._set_phase(_NO_RANK, bar)
        self.progress = done_total = (int(counts[-1][0]), int(counts[-1][1]))
        if bar == LOAD_WEIGHT:
            self.shards = done_total
        elif bar == CAPTURE_GRAPH:
            self.graphs = done_total
        return True

    def _read_startup_timings(self, text: str) -> bool:
        found = _TIMINGS.match(text)
        for name, value, group in _TIMING.findall(found[1] if found else ""):
            phase = _PHASE_OF_TIMING.get(name)
            seconds = (
                _decimal(value)
                if value
                else sum(_decimal(part) for part in re.findall(r"=([\d.]{1,12})", group))
            )
            if phase and (phase != CAPTURE_GRAPH or seconds):
                self._measured_s[phase] = seconds
        return True


def _decimal(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
