"""Defines what a log shows about NCCL or RCCL, as a frozen value, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

COLUMNS = ("func", "bytes", "algo", "proto", "channels", "count")
"""Columns of the table of choices, as in its JSON."""


@dataclass(frozen=True, slots=True)
class CollectiveChoice:
    """NCCL's choice for a collective of one size on one rank, and how often NCCL made it.
    `channels` is None before 2.24.
    """

    func: str | None
    bytes: int
    algo: str
    proto: str
    channels: int | None
    count: int

    def row(self) -> list[Any]:
        """Return the values in the order of COLUMNS."""
        return [self.func, self.bytes, self.algo, self.proto, self.channels, self.count]


@dataclass(frozen=True, slots=True)
class Communicator:
    """One communicator: its size, and the ranks whose start and end of initialisation
    were logged.
    """

    nranks: int
    started: tuple[int, ...]
    complete: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NcclWarnLine:
    """One WARN line. `dev` is the CUDA device in the process, never a TP rank; `time` is as NCCL
    prints it (from 2.26).
    """

    host: str
    pid: int
    dev: int | None
    file: str
    msg: str
    time: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class NcclAdvice:
    """Advice from the log that is not about a failure."""

    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class NcclFailure:
    """The reason why NCCL failed.

    `failure_class` is a class of `docs/failures.md`. `cause_line` is the line that shows it, and
    `result` is NCCL's own result code.
    """

    failure_class: str
    cause_line: str
    hint: str
    result: str = ""
    retryable: bool = True
    variable: str = ""
    value: str = ""
    function: str = ""
    datatype: str = ""


@dataclass(frozen=True, slots=True)
class NcclFacts:
    """Everything that NCCL's lines of one server show. A field is empty or None if the lines do not
    show it.

    Counts are of lines that were read.
    """

    library: str = ""
    versions: tuple[str, ...] = ()
    rocm: str = ""
    hip: str = ""
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tuning: tuple[CollectiveChoice, ...] = ()
    tuning_dropped: int = 0
    transport: Mapping[str, int] = field(default_factory=dict)
    paths: Mapping[str, int] = field(default_factory=dict)
    pairs: tuple[tuple[int, int, str, int], ...] = ()
    networks: tuple[str, ...] = ()
    ib_devices: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    bootstrap: str = ""
    comms: Mapping[str, Communicator] = field(default_factory=dict)
    split_comms: int = 0
    gdr: bool | None = None
    coll_channels: int | None = None
    nvls_channels: int | None = None
    p2p_channels: int | None = None
    nvls: bool | None = None
    plugins: Mapping[str, str] = field(default_factory=dict)
    warns: tuple[NcclWarnLine, ...] = ()
    warns_dropped: int = 0
    notes: tuple[NcclAdvice, ...] = ()
    failure: NcclFailure | None = None
    info_lines: int = 0
    warn_lines: int = 0

    @property
    def version(self) -> str:
        """Return the newest version that the log names, without the text after its numbers. Return
        an empty text if the log names none.
        """
        return self.versions[-1].split("-")[0].split("+")[0] if self.versions else ""

    @property
    def is_complete(self) -> bool:
        """Return whether at least one rank finished its initialisation. NCCL has then read and
        logged its variables.
        """
        return (
            self.split_comms > 0
            or self.coll_channels is not None
            or any(comm.complete for comm in self.comms.values())
        )

    def to_json(self) -> dict[str, Any]:
        """Return the facts as `fleetctl diagnose` and a trial's record hold them; unknown values
        are null or empty.
        """
        return {
            "library": self.library or None,
            "version": self.version or None,
            "versions": list(self.versions),
            "rocm": self.rocm or None,
            "hip": self.hip or None,
            "settings": {name: list(values) for name, values in self.settings.items()},
            "tuning": {
                "columns": list(COLUMNS),
                "rows": [choice.row() for choice in self.tuning],
                "dropped": self.tuning_dropped,
            },
            "transport": dict(self.transport),
            "paths": dict(self.paths),
            "pairs": [list(pair) for pair in self.pairs],
            "network": self.networks[-1] if self.networks else None,
            "ib_devices": list(self.ib_devices),
            "interfaces": list(self.interfaces),
            "comms": {
                name: {
                    "nranks": comm.nranks,
                    "started": list(comm.started),
                    "complete": list(comm.complete),
                }
                for name, comm in self.comms.items()
            },
            "split_comms": self.split_comms,
            "gdr": self.gdr,
            "coll_channels": self.coll_channels,
            "nvls_channels": self.nvls_channels,
            "p2p_channels": self.p2p_channels,
            "nvls": self.nvls,
            "plugins": dict(self.plugins),
            "warn": [_warn_json(warn) for warn in self.warns],
            "warn_dropped": self.warns_dropped,
            "notes": [
                {"code": note.code, "message": note.message, "hint": note.hint}
                for note in self.notes
            ],
            **_failure_json(self.failure),
        }


def _warn_json(warn: NcclWarnLine) -> dict[str, Any]:
    shown = {
        "host": warn.host,
        "pid": warn.pid,
        "dev": warn.dev,
        "file": warn.file,
        "msg": warn.msg,
    }
    return (
        shown
        | ({"time": warn.time} if warn.time else {})
        | ({"count": warn.count} if warn.count > 1 else {})
    )


def _failure_json(failure: NcclFailure | None) -> dict[str, Any]:
    if failure is None:
        return {"failure_class": None}
    named = {
        "variable": failure.variable,
        "value": failure.value,
        "function": failure.function,
        "datatype": failure.datatype,
    }
    return {
        "failure_class": failure.failure_class,
        "cause_line": failure.cause_line,
        "nccl_result": failure.result or None,
        "hint": failure.hint,
        "retryable": failure.retryable,
        **{key: value for key, value in named.items() if value},
    }
